#include "apps/tokenizers/files/gguf_vocabulary.hpp"

#include <nlohmann/json.hpp>

#include "apps/common/fail.hpp"
#include "apps/tokenizers/files/families.hpp"
#include "apps/tokenizers/files/vocabulary.hpp"
#include "apps/tokenizers/models/bpe_model.hpp"
#include "apps/tokenizers/sentencepiece/sentencepiece_model.hpp"
#include "stretto/models/model_files.hpp"

namespace apps {

using stretto::ErrorCode;

namespace {

void check_length(const char* key, std::size_t length, std::size_t tokens, const std::string& path) {
  if (length != 0 && length != tokens) fail(ErrorCode::io, "{} has {} of {} in {} tokens.", path, length, key, tokens);
}

void check(const GgufVocabulary& gguf, const std::string& path) {
  if (gguf.tokens.empty()) fail(ErrorCode::io, "{} has no tokenizer.ggml.tokens, so that it holds no tokenizer.", path);
  check_length("tokenizer.ggml.scores", gguf.scores.size(), gguf.tokens.size(), path);
  check_length("tokenizer.ggml.token_type", gguf.types.size(), gguf.tokens.size(), path);
  for (const std::optional<std::int32_t>& token : {gguf.beginning, gguf.end, gguf.unknown}) {
    if (token && (*token < 0 || static_cast<std::size_t>(*token) >= gguf.tokens.size())) {
      fail(ErrorCode::io, "{} names the token {}, but has {}.", path, *token, gguf.tokens.size());
    }
  }
}

std::int32_t type_of(const GgufVocabulary& gguf, std::size_t token) {
  return gguf.types.empty() ? static_cast<std::int32_t>(SentencePieceModel::normal) : gguf.types[token];
}

TokenizerParts llama_parts(const GgufVocabulary& gguf, const std::string& path) {
  if (gguf.scores.empty()) fail(ErrorCode::io, "{} has no tokenizer.ggml.scores, by which Llama's tokens are merged.", path);
  SentencePieceModel model;
  model.kind = SentencePieceModel::bpe;
  model.has_byte_fallback = true;
  model.removes_extra_spaces = false;
  model.adds_dummy_prefix = gguf.adds_space_prefix.value_or(true);
  for (std::size_t i = 0; i < gguf.tokens.size(); ++i) {
    model.pieces.push_back({gguf.tokens[i], gguf.scores[i], type_of(gguf, i)});
  }
  if (gguf.adds_beginning.value_or(true)) model.beginning = gguf.beginning;
  model.end = gguf.end;
  return parts_of(std::move(model), path);
}

TokenizerParts gpt2_parts(const GgufVocabulary& gguf, const std::string& path) {
  TokenizerParts parts;
  if (!add_gguf_steps(gguf.pre, parts.splitter)) {
    fail(ErrorCode::io, "{} has '{}' for tokenizer.ggml.pre, and how that cuts texts is unknown here.", path, gguf.pre);
  }
  const Vocabulary vocabulary(path, gguf.tokens);
  BpeRules rules;
  rules.tokens = vocabulary.size();
  rules.unknown.bytes = byte_level_tokens(vocabulary);
  for (const std::string& line : gguf.merges) vocabulary.add_merge(line, "a line of tokenizer.ggml.merges", rules);
  parts.texts = byte_level_texts(vocabulary);
  for (std::size_t i = 0; i < gguf.tokens.size(); ++i) {
    const bool is_control = type_of(gguf, i) == SentencePieceModel::control;
    const auto token = static_cast<std::int32_t>(i);
    if (is_control || type_of(gguf, i) == SentencePieceModel::user_defined) {
      parts.texts[i] = gguf.tokens[i];
      parts.added.push_back({.content = gguf.tokens[i], .token = token, .is_special = is_control});
    } else if (takes_whole_pieces(gguf.pre)) {
      rules.whole.emplace(parts.texts[i], token);
    }
  }
  if (gguf.adds_beginning.value_or(false)) parts.beginning = gguf.beginning;
  parts.end = gguf.end;
  parts.model = std::make_unique<BpeModel>(std::move(rules));
  return parts;
}

}  // namespace

TokenizerParts parts_of(const GgufVocabulary& gguf, const std::string& path) {
  check(gguf, path);
  if (gguf.model != "llama" && gguf.model != "gpt2") {
    fail(ErrorCode::io, "{} has '{}' for tokenizer.ggml.model, which is not served; gpt2 and llama are.", path, gguf.model);
  }
  TokenizerParts parts = gguf.model == "llama" ? llama_parts(gguf, path) : gpt2_parts(gguf, path);
  parts.chat_template = gguf.chat_template;
  parts.description =
      fmt::format("a GGUF file's vocabulary of {}", gguf.model == "llama" ? "Llama's" : "the kind " + gguf.pre);
  return parts;
}

GgufVocabulary read_gguf_vocabulary(const std::string& path) {
  const nlohmann::json metadata = nlohmann::json::parse(stretto::gguf_metadata(path));
  GgufVocabulary vocabulary;
  const auto take = [&]<class T>(const char* key, T& value) {
    const auto found = metadata.find(key);
    if (found == metadata.end()) return;
    try {
      value = found->get<T>();
    } catch (const nlohmann::json::exception&) {
      fail(ErrorCode::io, "{} has a value of another type for {}.", path, key);
    }
  };
  const auto take_optional = [&]<class T>(const char* key, std::optional<T>& value) {
    if (metadata.contains(key)) take(key, value.emplace());
  };
  take("tokenizer.ggml.model", vocabulary.model);
  take("tokenizer.ggml.pre", vocabulary.pre);
  take("tokenizer.ggml.tokens", vocabulary.tokens);
  take("tokenizer.ggml.merges", vocabulary.merges);
  take("tokenizer.ggml.scores", vocabulary.scores);
  take("tokenizer.ggml.token_type", vocabulary.types);
  take_optional("tokenizer.ggml.bos_token_id", vocabulary.beginning);
  take_optional("tokenizer.ggml.eos_token_id", vocabulary.end);
  take_optional("tokenizer.ggml.unknown_token_id", vocabulary.unknown);
  take_optional("tokenizer.ggml.add_bos_token", vocabulary.adds_beginning);
  take_optional("tokenizer.ggml.add_space_prefix", vocabulary.adds_space_prefix);
  take("tokenizer.chat_template", vocabulary.chat_template);
  return vocabulary;
}

}  // namespace apps
