#include "apps/tokenizers/text_tokenizer.hpp"

#include <algorithm>
#include <ranges>

#include "apps/common/fail.hpp"

namespace apps {

namespace {

// As tokenizers do it: these are looked for in the text as it is, the others in the normalized text, themselves normalized.
std::vector<AddedToken> looked_for(const TokenizerParts& parts, bool in_normalized) {
  std::vector<AddedToken> tokens;
  for (AddedToken token : parts.added) {
    if (token.normalized != in_normalized) continue;
    if (in_normalized) token.content = parts.normalizer.normalized(token.content);
    tokens.push_back(std::move(token));
  }
  return tokens;
}

}  // namespace

TextTokenizer::TextTokenizer(TokenizerParts parts, bool finds_special)
    : parts_(std::move(parts)),
      added_(looked_for(parts_, false), finds_special),
      added_to_normalized_(looked_for(parts_, true), finds_special),
      is_special_(parts_.texts.size()) {
  for (const AddedToken& token : parts_.added) is_special_.at(static_cast<std::size_t>(token.token)) = token.is_special;
}

std::vector<std::int32_t> TextTokenizer::encode_more(const std::string& text) {
  std::vector<std::int32_t> tokens;
  encode_text(text, false,
              [&](std::span<const std::int32_t> more) { tokens.insert(tokens.end(), more.begin(), more.end()); });
  return tokens;
}

std::optional<std::int32_t> TextTokenizer::special_token(std::string_view name) const {
  const auto found =
      std::ranges::find_if(parts_.added, [&](const AddedToken& token) { return token.is_special && token.content == name; });
  if (found == parts_.added.end()) return std::nullopt;
  return found->token;
}

void TextTokenizer::encode_text(std::string_view text, bool is_beginning, const TakeTokens& take) {
  added_.split(text, [&](std::string_view section, std::optional<std::int32_t> token) {
    if (token) return take(std::span(&*token, 1));
    const bool begins = is_beginning && section.data() == text.data();
    if (parts_.normalizer.empty()) return encode_section(section, begins, take);
    encode_section(parts_.normalizer.normalized(section), begins, take);
  });
}

void TextTokenizer::encode_section(std::string_view text, bool begins, const TakeTokens& take) {
  added_to_normalized_.split(text, [&](std::string_view section, std::optional<std::int32_t> token) {
    if (token) return take(std::span(&*token, 1));
    parts_.splitter.split(section, begins && section.data() == text.data(),
                          [&](std::string_view piece) { take(parts_.model->tokens_of(piece)); });
  });
}

std::string TextTokenizer::text_of(const std::vector<std::int32_t>& tokens, bool begins) const {
  std::string text;
  bool takes_space = begins && parts_.leading_space != LeadingSpace::stays;
  for (const std::int32_t token : tokens) {
    require(token >= 0 && token < size(), "The token {} is none of the vocabulary's {}; they end at {}.", token, size(),
            size() - 1);
    const auto index = static_cast<std::size_t>(token);
    std::string_view more = parts_.texts[index];
    if (more.empty()) continue;
    if (takes_space && more.front() == ' ') more.remove_prefix(1);
    takes_space = is_special_[index] && parts_.leading_space == LeadingSpace::goes_behind_special;
    text += more;
  }
  return text;
}

std::string TextTokenizer::description() const {
  const auto name = [&](std::int32_t token) { return parts_.texts[static_cast<std::size_t>(token)]; };
  std::string text = fmt::format("{}, {} tokens", parts_.description, size());
  if (separator()) text += fmt::format(", {} before each document", name(*separator()));
  return text;
}

}  // namespace apps
