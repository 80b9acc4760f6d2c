#include "apps/train/data/tokenizer.hpp"

#include <charconv>
#include <sstream>

#include "apps/common/fail.hpp"

namespace apps {

std::vector<std::int32_t> ByteTokenizer::encode(const std::string& text) {
  std::vector<std::int32_t> tokens;
  for (const char byte : text) tokens.push_back(static_cast<unsigned char>(byte));
  return tokens;
}

std::string ByteTokenizer::decode(const std::vector<std::int32_t>& tokens) const {
  std::string text;
  for (const std::int32_t token : tokens) text += static_cast<char>(token);
  return text;
}

std::vector<std::int32_t> NumberTokenizer::encode(const std::string& text) {
  std::vector<std::int32_t> tokens;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    std::int32_t token = -1;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), token);
    require(
        error == std::errc() && end == word.data() + word.size() && token >= 0 && token < size_,
        "Without a vocabulary a prompt consists of the numbers of tokens below {}, such as '15496 995', and '{}' is none; "
        "give --vocab-file and --merges-file.",
        size_, word);
    tokens.push_back(token);
  }
  return tokens;
}

std::string NumberTokenizer::decode(const std::vector<std::int32_t>& tokens) const {
  return fmt::format("{}", fmt::join(tokens, " "));
}

}  // namespace apps
