#include "apps/train/report/printable.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>

namespace apps {

namespace {

struct Character {
  std::size_t bytes = 1;
  bool shows = false;
};

Character first_of(std::string_view text) {
  const auto byte = [&](std::size_t i) -> std::uint32_t { return static_cast<unsigned char>(text[i]); };
  const std::uint32_t first = byte(0);
  if (first < 0x80) return {1, first == '\n' || first == '\t' || (first >= ' ' && first != 0x7f)};
  const std::size_t bytes = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc0 || bytes > text.size()) return {};
  std::uint32_t code = first & (0x7fU >> bytes);
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return {};
    code = code << 6 | (byte(i) & 0x3f);
  }
  constexpr std::array<std::uint32_t, 5> least = {0, 0, 0x80, 0x800, 0x10000};  // of so many bytes
  const bool is_valid = code >= least[bytes] && code <= 0x10ffff && (code < 0xd800 || code > 0xdfff);
  return is_valid ? Character{bytes, code >= 0xa0} : Character{};  // below are the control characters of Latin-1
}

}  // namespace

std::string printable(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const Character next = first_of(text);
    for (const char each : text.substr(0, next.bytes)) {
      result += next.shows ? std::string(1, each) : fmt::format("\\x{:02x}", static_cast<unsigned char>(each));
    }
    text.remove_prefix(next.bytes);
  }
  return result;
}

}  // namespace apps
