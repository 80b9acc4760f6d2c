#include "apps/tokenizers/text/byte_alphabet.hpp"

#include "apps/tokenizers/text/utf8.hpp"

namespace apps {

namespace {

bool is_printable(unsigned byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || (byte >= 0xae && byte <= 0xff);
}

}  // namespace

ByteAlphabet::ByteAlphabet() {
  for (unsigned byte = 0; byte < 256; ++byte) {
    bytes_[character_of(static_cast<unsigned char>(byte))] = static_cast<char>(byte);
  }
}

std::string ByteAlphabet::character_of(unsigned char byte) const {
  if (is_printable(byte)) return utf8(byte);
  std::uint32_t character = 256;
  for (unsigned before = 0; before < byte; ++before) character += is_printable(before) ? 0 : 1;
  return utf8(character);
}

std::optional<std::string> ByteAlphabet::bytes_of(std::string_view token) const {
  std::string bytes;
  while (!token.empty()) {
    const std::size_t length = character_length(token);
    const auto found = bytes_.find(std::string(token.substr(0, length)));
    if (length == 0 || found == bytes_.end()) return std::nullopt;
    bytes += found->second;
    token.remove_prefix(length);
  }
  return bytes;
}

}  // namespace apps
