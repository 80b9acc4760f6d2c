#include "apps/tokenize/bpe/vocabulary.hpp"

#include <array>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "apps/common/fail.hpp"
#include "apps/train/data/data_file.hpp"

namespace apps {

using stretto::ErrorCode;

namespace {

// The files write each byte as one printable character (bytes_to_unicode in OpenAI's encoder.py): the printable ones of
// Latin-1 stand for themselves, the other bytes, in their order, for the characters from 256 on.
std::array<std::uint32_t, 256> characters_of_bytes() {
  std::array<std::uint32_t, 256> characters{};
  std::uint32_t next = 256;
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    const bool is_printable = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    characters[byte] = is_printable ? byte : next++;
  }
  return characters;
}

std::string utf8(std::uint32_t character) {
  if (character < 0x80) return {static_cast<char>(character)};
  return {static_cast<char>(0xc0 | (character >> 6)), static_cast<char>(0x80 | (character & 0x3f))};
}

class ByteAlphabet {
 public:
  ByteAlphabet() {
    const std::array<std::uint32_t, 256> characters = characters_of_bytes();
    for (std::size_t byte = 0; byte < characters.size(); ++byte) {
      bytes_[utf8(characters[byte])] = static_cast<char>(byte);
    }
  }

  // Returns the bytes that a token of the files stands for. A token with characters outside the alphabet was added later,
  // and stands for itself.
  std::string bytes_of(const std::string& token) const {
    std::string bytes;
    for (std::size_t at = 0; at < token.size();) {
      const std::size_t length = static_cast<unsigned char>(token[at]) < 0x80 ? 1 : 2;
      const auto found = bytes_.find(token.substr(at, length));
      if (found == bytes_.end()) return token;
      bytes += found->second;
      at += length;
    }
    return bytes;
  }

 private:
  std::unordered_map<std::string, char> bytes_;
};

nlohmann::json json_of(const std::string& path) {
  nlohmann::json json = nlohmann::json::parse(DataFile(path).text(), nullptr, false);
  if (!json.is_object() || json.empty()) {
    fail(ErrorCode::io, "{} is no vocabulary: it is not one JSON object of tokens and their numbers.", path);
  }
  return json;
}

class VocabularyReader {
 public:
  explicit VocabularyReader(const std::string& path) : path_(path) {
    const nlohmann::json json = json_of(path);
    result_.tokens.resize(json.size());
    std::vector<bool> is_there(json.size());
    for (const auto& [token, number] : json.items()) {
      const bool is_number = number.is_number_unsigned() && number.get<std::uint64_t>() < json.size();
      if (!is_number || is_there[number.get<std::size_t>()]) {
        fail(ErrorCode::io,
             "{} gives the token '{}' the number {}, but its {} tokens need the numbers from 0 on, each once.", path, token,
             number.dump(), json.size());
      }
      const auto index = number.get<std::size_t>();
      is_there[index] = true;
      numbers_[token] = static_cast<std::int32_t>(index);
      result_.tokens[index] = alphabet_.bytes_of(token);
    }
    const auto found = numbers_.find("<|endoftext|>");
    if (found != numbers_.end()) result_.end_of_text = found->second;
    const std::array<std::uint32_t, 256> characters = characters_of_bytes();
    for (const std::uint32_t character : characters) result_.byte_tokens.push_back(number_of(utf8(character), "a byte"));
  }

  void read_merges(const std::string& path) {
    const std::string text = DataFile(path).text();
    std::size_t line_number = 0;
    for (std::string_view rest = text; !rest.empty();) {
      const std::string_view line = rest.substr(0, rest.find('\n'));
      rest.remove_prefix(std::min(rest.size(), line.size() + 1));
      ++line_number;
      if (line.empty() || (line_number == 1 && line.starts_with("#version"))) continue;
      add_merge(line, fmt::format("line {} of {}", line_number, path));
    }
  }

  BpeVocabulary take() { return std::move(result_); }

 private:
  void add_merge(std::string_view line, const std::string& where) {
    if (line.ends_with('\r')) line.remove_suffix(1);
    const std::size_t space = line.find(' ');
    if (space == std::string_view::npos || space == 0 || line.find(' ', space + 1) != std::string_view::npos ||
        space + 1 == line.size()) {
      fail(ErrorCode::io, "It takes two tokens with a space between them to merge, and {} has not got them.", where);
    }
    const std::string left(line.substr(0, space)), right(line.substr(space + 1));
    result_.merges.push_back({number_of(left, where), number_of(right, where), number_of(left + right, where)});
  }

  std::int32_t number_of(const std::string& token, const std::string& wanted_by) const {
    const auto found = numbers_.find(token);
    if (found == numbers_.end()) fail(ErrorCode::io, "{} has no token '{}', which {} needs.", path_, token, wanted_by);
    return found->second;
  }

  std::string path_;
  ByteAlphabet alphabet_;
  std::unordered_map<std::string, std::int32_t> numbers_;
  BpeVocabulary result_;
};

}  // namespace

BpeVocabulary read_bpe_vocabulary(const std::string& vocabulary_path, const std::string& merges_path) {
  VocabularyReader reader(vocabulary_path);
  reader.read_merges(merges_path);
  return reader.take();
}

}  // namespace apps
