#include "apps/tokenizers/json/bpe.hpp"

#include <algorithm>

#include "apps/common/fail.hpp"
#include "apps/tokenizers/files/vocabulary.hpp"
#include "apps/tokenizers/models/bpe_model.hpp"
#include "apps/tokenizers/text/byte_alphabet.hpp"
#include "apps/tokenizers/text/utf8.hpp"

namespace apps {

namespace {

void refuse_what_is_not_served(const JsonPart& model) {
  // Older files do not say which model they have.
  if (model.has("type") && model.type() != "BPE")
    model.fail_with(fmt::format("the type '{}', which is not served,", model.type()));
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (model.has(key) && !model.text(key).empty()) model.fail_with(fmt::format("'{}', which is not served,", key));
  }
  if (!model.has("dropout")) return;
  const nlohmann::json& dropout = model.at("dropout").value();
  if (!dropout.is_number() || dropout.get<double>() != 0) model.fail_with("a 'dropout', which is not served,");
}

Vocabulary vocabulary_of(const JsonPart& model) {
  const JsonPart vocab = model.at("vocab");
  if (!vocab.value().is_object() || vocab.value().empty()) model.fail_with("no object of tokens for 'vocab'");
  std::vector<std::string> tokens;
  for (const auto& [token, number] : vocab.value().items()) {
    if (!number.is_number_unsigned() || number.get<std::uint64_t>() >= most_tokens) {
      model.fail_with(fmt::format("the number {} for the token '{}'", number.dump(), token));
    }
    const auto index = number.get<std::size_t>();
    if (index >= tokens.size()) tokens.resize(index + 1);
    if (!tokens[index].empty()) {
      model.fail_with(fmt::format("the number {} for the tokens '{}' and '{}'", index, tokens[index], token));
    }
    tokens[index] = token;
  }
  return {model.path(), std::move(tokens)};
}

// Strings "left right", or pairs, by which tokens may have spaces.
void read_merges(const JsonPart& model, const Vocabulary& vocabulary, BpeRules& rules) {
  for (const JsonPart& part : model.list("merges")) {
    const nlohmann::json& merge = part.value();
    const std::string where = fmt::format("merge {} of {}", rules.merges.size(), model.path());
    if (merge.is_string()) {
      vocabulary.add_merge(merge.get<std::string>(), where, rules);
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      vocabulary.add_merge(merge[0].get<std::string>(), merge[1].get<std::string>(), where, rules);
    } else {
      model.fail_with(fmt::format("neither \"left right\" nor a pair for merge {}", rules.merges.size()));
    }
  }
}

UnknownText unknown_of(const JsonPart& model, const Vocabulary& vocabulary, bool is_byte_level) {
  UnknownText unknown;
  if (model.has("unk_token")) unknown.unknown = vocabulary.number_of(model.text("unk_token"), "unk_token");
  unknown.fuses = model.flag("fuse_unk", false);
  if (is_byte_level) {
    unknown.bytes = byte_level_tokens(vocabulary);
  } else if (model.flag("byte_fallback", false)) {
    unknown.bytes = named_byte_tokens(vocabulary);
  }
  return unknown;
}

// The symbols that pieces begin with: tokens of one character.
std::unordered_map<std::string, std::int32_t> characters_of(const Vocabulary& vocabulary) {
  std::unordered_map<std::string, std::int32_t> characters;
  for (const std::string& token : vocabulary.tokens()) {
    if (!token.empty() && character_length(token) == token.size()) characters.emplace(token, vocabulary.find(token));
  }
  return characters;
}

// By ignore_merges a piece that is a token is taken as it is.
void add_whole_pieces(const Vocabulary& vocabulary, bool is_byte_level, BpeRules& rules) {
  const ByteAlphabet alphabet;
  for (const std::string& token : vocabulary.tokens()) {
    const std::optional<std::string> text = is_byte_level ? alphabet.bytes_of(token) : token;
    if (text && !text->empty()) rules.whole.emplace(*text, vocabulary.find(token));
  }
}

std::string text_of(const std::string& token, const Decoder& decoder) {
  const int byte = decoder.has_byte_fallback ? named_byte(token) : -1;
  if (byte >= 0) return {static_cast<char>(byte)};
  return decoder.replacements.normalized(token);
}

}  // namespace

void read_bpe(const JsonPart& model, const Decoder& decoder, TokenizerParts& parts) {
  refuse_what_is_not_served(model);
  const Vocabulary vocabulary = vocabulary_of(model);
  BpeRules rules;
  rules.tokens = vocabulary.size();
  rules.begins_with_bytes = decoder.is_byte_level;
  rules.unknown = unknown_of(model, vocabulary, decoder.is_byte_level);
  if (!decoder.is_byte_level) rules.characters = characters_of(vocabulary);
  read_merges(model, vocabulary, rules);
  if (model.flag("ignore_merges", false)) add_whole_pieces(vocabulary, decoder.is_byte_level, rules);
  if (decoder.is_byte_level) {
    parts.texts = byte_level_texts(vocabulary);
  } else {
    for (const std::string& token : vocabulary.tokens()) parts.texts.push_back(text_of(token, decoder));
  }
  if (!decoder.is_byte_level) cut_at_spaces_and_lines(rules, vocabulary, parts.splitter);
  parts.model = std::make_unique<BpeModel>(std::move(rules));
}

}  // namespace apps
