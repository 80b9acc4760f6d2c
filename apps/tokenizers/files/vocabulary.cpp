#include "apps/tokenizers/files/vocabulary.hpp"

#include <charconv>

#include "apps/common/fail.hpp"
#include "apps/tokenizers/sentencepiece/sentencepiece_normalizer.hpp"
#include "apps/tokenizers/text/byte_alphabet.hpp"

namespace apps {

using stretto::ErrorCode;

Vocabulary::Vocabulary(std::string path, std::vector<std::string> tokens)
    : path_(std::move(path)), tokens_(std::move(tokens)) {
  numbers_.reserve(tokens_.size());
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    if (!tokens_[i].empty()) numbers_.emplace(tokens_[i], static_cast<std::int32_t>(i));
  }
}

std::int32_t Vocabulary::find(const std::string& token) const {
  const auto found = numbers_.find(token);
  return found == numbers_.end() ? -1 : found->second;
}

std::int32_t Vocabulary::number_of(const std::string& token, const std::string& wanted_by) const {
  const std::int32_t number = find(token);
  if (number < 0) fail(ErrorCode::io, "{} has no token '{}', which {} needs.", path_, token, wanted_by);
  return number;
}

void Vocabulary::add_merge(const std::string& left, const std::string& right, const std::string& where,
                           BpeRules& rules) const {
  const auto rank = static_cast<std::int32_t>(rules.merges.size());
  rules.merges.push_back({number_of(left, where), number_of(right, where), number_of(left + right, where), rank});
}

void Vocabulary::add_merge(std::string_view line, const std::string& where, BpeRules& rules) const {
  const std::size_t space = line.find(' ');
  if (space == std::string_view::npos || space == 0 || line.find(' ', space + 1) != std::string_view::npos ||
      space + 1 == line.size()) {
    fail(ErrorCode::io, "It takes two tokens with a space between them to merge, and {} has not got them.", where);
  }
  add_merge(std::string(line.substr(0, space)), std::string(line.substr(space + 1)), where, rules);
}

std::vector<std::string> byte_level_texts(const Vocabulary& vocabulary) {
  const ByteAlphabet alphabet;
  std::vector<std::string> texts;
  texts.reserve(vocabulary.tokens().size());
  for (const std::string& token : vocabulary.tokens()) texts.push_back(alphabet.bytes_of(token).value_or(token));
  return texts;
}

std::vector<std::int32_t> byte_level_tokens(const Vocabulary& vocabulary) {
  const ByteAlphabet alphabet;
  std::vector<std::int32_t> tokens;
  for (unsigned byte = 0; byte < 256; ++byte) {
    tokens.push_back(vocabulary.find(alphabet.character_of(static_cast<unsigned char>(byte))));
  }
  return tokens;
}

std::vector<std::int32_t> named_byte_tokens(const Vocabulary& vocabulary) {
  std::vector<std::int32_t> tokens;
  for (unsigned byte = 0; byte < 256; ++byte) tokens.push_back(vocabulary.find(fmt::format("<0x{:02X}>", byte)));
  return tokens;
}

int named_byte(const std::string& token) {
  if (token.size() != 6 || !token.starts_with("<0x") || !token.ends_with('>')) return -1;
  int byte = -1;
  const auto [end, error] = std::from_chars(token.data() + 3, token.data() + 5, byte, 16);
  return error == std::errc() && end == token.data() + 5 ? byte : -1;
}

void cut_at_spaces_and_lines(const BpeRules& rules, const Vocabulary& vocabulary, Splitter& splitter) {
  for (const char* marker : {space_marker, "\n"}) {
    if (keeps_to_words(rules, vocabulary.tokens(), marker)) splitter.cut_words(marker);
  }
}

}  // namespace apps
