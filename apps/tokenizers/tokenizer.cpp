#include "apps/tokenizers/tokenizer.hpp"

#include <charconv>
#include <sstream>

#include "apps/common/fail.hpp"

namespace apps {

std::vector<std::int32_t> Tokenizer::encode(const std::string& text) {
  std::vector<std::int32_t> tokens;
  encode_pieces(text, [&](std::span<const std::int32_t> more) { tokens.insert(tokens.end(), more.begin(), more.end()); });
  return tokens;
}

void ByteTokenizer::encode_pieces(std::string_view text, const TakeTokens& take) {
  for (const char byte : text) {
    const std::int32_t token = static_cast<unsigned char>(byte);
    take(std::span(&token, 1));
  }
}

std::string ByteTokenizer::text_of(const std::vector<std::int32_t>& tokens, bool) const {
  std::string text;
  for (const std::int32_t token : tokens) text += static_cast<char>(token);
  return text;
}

void NumberTokenizer::encode_pieces(std::string_view text, const TakeTokens& take) {
  std::istringstream words{std::string(text)};
  for (std::string word; words >> word;) {
    std::int32_t token = -1;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), token);
    require(
        error == std::errc() && end == word.data() + word.size() && token >= 0 && token < size_,
        "Without a vocabulary a prompt consists of the numbers of tokens below {}, such as '15496 995', and '{}' is none; "
        "give --tokenizer, or --vocab-file and --merges-file.",
        size_, word);
    take(std::span(&token, 1));
  }
}

std::string NumberTokenizer::text_of(const std::vector<std::int32_t>& tokens, bool) const {
  return fmt::format("{}", fmt::join(tokens, " "));
}

}  // namespace apps
