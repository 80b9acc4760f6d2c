#include "apps/tokenizers/files/gpt2_files.hpp"

#include <nlohmann/json.hpp>

#include "apps/common/fail.hpp"
#include "apps/tokenizers/files/families.hpp"
#include "apps/tokenizers/files/vocabulary.hpp"
#include "apps/train/data/data_file.hpp"

namespace apps {

using stretto::ErrorCode;

namespace {

constexpr const char* end_of_text = "<|endoftext|>";

Vocabulary read_vocabulary(const std::string& path) {
  const nlohmann::json json = nlohmann::json::parse(DataFile(path).text(), nullptr, false);
  if (!json.is_object() || json.empty()) {
    fail(ErrorCode::io, "{} is no vocabulary: it is not one JSON object of tokens and their numbers.", path);
  }
  std::vector<std::string> tokens(json.size());
  std::vector<bool> is_there(json.size());
  for (const auto& [token, number] : json.items()) {
    const bool is_number = number.is_number_unsigned() && number.get<std::uint64_t>() < json.size();
    if (!is_number || is_there[number.get<std::size_t>()]) {
      fail(ErrorCode::io, "{} gives the token '{}' the number {}, but its {} tokens need the numbers from 0 on, each once.",
           path, token, number.dump(), json.size());
    }
    is_there[number.get<std::size_t>()] = true;
    tokens[number.get<std::size_t>()] = token;
  }
  return {path, std::move(tokens)};
}

void read_merges(const std::string& path, const Vocabulary& vocabulary, BpeRules& rules) {
  const std::string text = DataFile(path).text();
  std::size_t line_number = 0;
  for (std::string_view rest = text; !rest.empty();) {
    std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    ++line_number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || (line_number == 1 && line.starts_with("#version"))) continue;
    vocabulary.add_merge(line, fmt::format("line {} of {}", line_number, path), rules);
  }
}

}  // namespace

TokenizerParts read_gpt2_files(const std::string& vocabulary_path, const std::string& merges_path) {
  const Vocabulary vocabulary = read_vocabulary(vocabulary_path);
  BpeRules rules;
  rules.tokens = vocabulary.size();
  rules.unknown.bytes = byte_level_tokens(vocabulary);
  for (std::size_t byte = 0; byte < rules.unknown.bytes.size(); ++byte) {
    if (rules.unknown.bytes[byte] < 0) {
      fail(ErrorCode::io, "{} has no token of the byte {:#04x} alone, which GPT-2's vocabulary has of every byte.",
           vocabulary_path, byte);
    }
  }
  read_merges(merges_path, vocabulary, rules);
  TokenizerParts parts;
  parts.description = "GPT-2's byte pair encoding";
  parts.texts = byte_level_texts(vocabulary);
  parts.splitter.split_at(Pattern(gpt2_pattern));
  if (const std::int32_t end = vocabulary.find(end_of_text); end >= 0) {
    parts.end = end;
    parts.added.push_back({.content = end_of_text, .token = end, .is_special = true});
  }
  parts.model = std::make_unique<BpeModel>(std::move(rules));
  return parts;
}

}  // namespace apps
