#include "apps/tokenizers/json/tokenizer_json.hpp"

#include <algorithm>
#include <filesystem>

#include "apps/common/fail.hpp"
#include "apps/tokenizers/json/bpe.hpp"
#include "apps/tokenizers/json/components.hpp"
#include "apps/tokenizers/json/json_part.hpp"
#include "apps/train/data/data_file.hpp"

namespace apps {

using stretto::ErrorCode;

namespace {

// The names of tokens that end a text where no file says which one does.
constexpr const char* names_of_ends[] = {"<|endoftext|>", "<|end_of_text|>", "</s>", "<｜end▁of▁sentence｜>"};

std::optional<std::int32_t> find_token(const TokenizerParts& parts, const std::string& content) {
  const auto found = std::ranges::find(parts.added, content, &AddedToken::content);
  if (found == parts.added.end()) return std::nullopt;
  return found->token;
}

void read_added_tokens(const JsonPart& file, TokenizerParts& parts) {
  if (!file.has("added_tokens")) return;
  for (const JsonPart& part : file.list("added_tokens")) {
    const std::int64_t number = part.number("id");
    AddedToken token{.content = part.text("content"),
                     .is_special = part.flag("special", false),
                     .single_word = part.flag("single_word", false),
                     .strips_left = part.flag("lstrip", false),
                     .strips_right = part.flag("rstrip", false),
                     .normalized = part.flag("normalized", true)};
    if (number < 0 || number >= most_tokens) part.fail_with(fmt::format("the id {} of '{}'", number, token.content));
    token.token = static_cast<std::int32_t>(number);
    if (number >= static_cast<std::int64_t>(parts.texts.size())) parts.texts.resize(static_cast<std::size_t>(number) + 1);
    parts.texts[static_cast<std::size_t>(number)] = token.content;
    parts.added.push_back(std::move(token));
  }
}

// TemplateProcessing: the special tokens around a text.
void read_template(const JsonPart& part, TokenizerParts& parts) {
  bool is_behind = false;
  for (const JsonPart& item : part.list("single")) {
    if (item.has("Sequence")) {
      is_behind = true;
      continue;
    }
    const std::string id = item.at("SpecialToken").text("id");
    std::optional<std::int32_t>& token = is_behind ? parts.end : parts.beginning;
    if (token) part.fail_with("'TemplateProcessing' with several tokens before or behind a text, which is not served,");
    token = find_token(parts, id);
    if (!token) part.fail_with(fmt::format("the token '{}', which is none of added_tokens,", id));
  }
}

void read_post_processor(const JsonPart& part, TokenizerParts& parts, bool is_within = false) {
  const std::string type = part.type();
  if (type == "Sequence" && !is_within) {
    for (const JsonPart& processor : part.list("processors")) read_post_processor(processor, parts, true);
  } else if (type == "TemplateProcessing") {
    read_template(part, parts);
  } else if (type != "ByteLevel") {  // which changes offsets alone
    part.fail_with(fmt::format("'{}', which is not served,", type));
  }
}

// A special token of tokenizer_config.json: its text, or an object with that.
std::optional<std::int32_t> token_of_config(const JsonPart& config, const char* key, const TokenizerParts& parts) {
  if (!config.has(key)) return std::nullopt;
  const JsonPart token = config.at(key);
  return find_token(parts, token.value().is_object() ? token.text("content") : config.text(key));
}

void read_config_beside(const std::string& path, TokenizerParts& parts) {
  const std::filesystem::path file = std::filesystem::path(path).replace_filename("tokenizer_config.json");
  if (!std::filesystem::exists(file)) return;
  const nlohmann::json json = nlohmann::json::parse(DataFile(file).text(), nullptr, false);
  if (!json.is_object()) fail(ErrorCode::io, "{} is no JSON object.", file.string());
  const JsonPart config(json, file, "values");
  if (const auto end = token_of_config(config, "eos_token", parts)) parts.end = end;
  if (config.flag("add_bos_token", false)) parts.beginning = token_of_config(config, "bos_token", parts);
}

void read_ends(const JsonPart& file, TokenizerParts& parts) {
  if (file.has("post_processor")) read_post_processor(file.at("post_processor"), parts);
  read_config_beside(file.path(), parts);
  for (const char* name : names_of_ends) {
    if (!parts.end) parts.end = find_token(parts, name);
  }
}

}  // namespace

TokenizerParts read_tokenizer_json(const std::string& path, const std::string& text) {
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  const JsonPart file(json, path, "top level");
  if (!json.is_object()) fail(ErrorCode::io, "{} is no JSON object.", path);
  if (!file.has("model")) fail(ErrorCode::io, "{} is no tokenizer.json: it has no 'model'.", path);
  TokenizerParts parts;
  bool is_byte_level = false;
  if (file.has("normalizer")) add_normalizer(file.at("normalizer"), parts.normalizer);
  if (file.has("pre_tokenizer")) is_byte_level = add_pre_tokenizer(file.at("pre_tokenizer"), parts.splitter);
  if (!file.has("decoder")) fail(ErrorCode::io, "{} has no decoder, without which tokens do not become text again.", path);
  const Decoder decoder = read_decoder(file.at("decoder"));
  if (decoder.is_byte_level != is_byte_level) {
    fail(ErrorCode::io, "{} has ByteLevel as {} alone; texts do not come back so.", path,
         is_byte_level ? "pre_tokenizer" : "decoder");
  }
  parts.leading_space = decoder.leading_space;
  read_bpe(file.at("model"), decoder, parts);
  read_added_tokens(file, parts);
  read_ends(file, parts);
  parts.description = fmt::format("tokenizer.json of {} BPE", is_byte_level ? "byte-level" : "character-level");
  return parts;
}

}  // namespace apps
