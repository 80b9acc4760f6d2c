#include "apps/tokenizers/text/utf8.hpp"

#include <cstring>

namespace apps {

namespace {

constexpr std::uint32_t smallest[] = {0, 0, 0x80, 0x800, 0x10000};  // by the length: what is shorter must be written so

std::size_t length_of_lead(unsigned char lead) {
  if (lead < 0x80) return 1;
  if (lead < 0xc2 || lead > 0xf4) return 0;
  return lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
}

}  // namespace

std::uint32_t first_character(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text.front());
  const std::size_t length = length_of_lead(lead);
  if (length <= 1) return lead;
  std::uint32_t character = lead & (0xffU >> (length + 1));
  for (std::size_t i = 1; i < length; ++i) character = character << 6 | (static_cast<unsigned char>(text[i]) & 0x3fU);
  return character;
}

std::size_t character_length(std::string_view text) {
  if (text.empty()) return 0;
  const std::size_t length = length_of_lead(static_cast<unsigned char>(text.front()));
  if (length <= 1) return length;
  if (length > text.size()) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xc0U) != 0x80) return 0;
  }
  const std::uint32_t character = first_character(text);
  const bool is_surrogate = character >= 0xd800 && character < 0xe000;
  return character >= smallest[length] && character <= 0x10ffff && !is_surrogate ? length : 0;
}

std::size_t valid_length(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    std::uint64_t eight = 0;
    if (text.size() - at >= sizeof eight) {
      std::memcpy(&eight, text.data() + at, sizeof eight);
      if ((eight & 0x8080808080808080U) == 0) {
        at += sizeof eight;
        continue;
      }
    }
    const std::size_t length = character_length(text.substr(at));
    if (length == 0) break;
    at += length;
  }
  return at;
}

std::string utf8(std::uint32_t character) {
  const auto last = [&](int shift) { return static_cast<char>(0x80 | ((character >> shift) & 0x3f)); };
  if (character < 0x80) return {static_cast<char>(character)};
  if (character < 0x800) return {static_cast<char>(0xc0 | (character >> 6)), last(0)};
  if (character < 0x10000) return {static_cast<char>(0xe0 | (character >> 12)), last(6), last(0)};
  return {static_cast<char>(0xf0 | (character >> 18)), last(12), last(6), last(0)};
}

bool is_white_space(std::uint32_t character) {
  switch (character) {
    case ' ':
    case 0x85:
    case 0xa0:
    case 0x1680:
    case 0x2028:
    case 0x2029:
    case 0x202f:
    case 0x205f:
    case 0x3000: return true;
    default: return (character >= 9 && character <= 13) || (character >= 0x2000 && character <= 0x200a);
  }
}

}  // namespace apps
