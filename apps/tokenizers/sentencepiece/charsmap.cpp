#include "apps/tokenizers/sentencepiece/charsmap.hpp"

#include <cstring>

#include "apps/common/fail.hpp"

namespace apps {

namespace {

// A unit of darts-clone's array: the label of its edge, whether a word ends here, and how far its children are.
bool ends_word(std::uint32_t unit) { return (unit >> 8 & 1) != 0; }
std::uint32_t label(std::uint32_t unit) { return unit & (1U << 31 | 0xff); }
std::uint32_t offset(std::uint32_t unit) { return (unit >> 10) << ((unit & 1U << 9) >> 6); }
std::uint32_t value(std::uint32_t unit) { return unit & ~(1U << 31); }

}  // namespace

Charsmap::Charsmap(std::string_view bytes, const std::string& path) {
  std::uint32_t size = 0;
  if (bytes.size() >= sizeof size) std::memcpy(&size, bytes.data(), sizeof size);
  if (size == 0 || size % sizeof(std::uint32_t) != 0 || size > bytes.size() - sizeof size) {
    fail(stretto::ErrorCode::io, "{} has a precompiled_charsmap of {} bytes whose trie would have {}.", path, bytes.size(),
         size);
  }
  units_.resize(size / sizeof(std::uint32_t));
  std::memcpy(units_.data(), bytes.data() + sizeof size, size);
  texts_ = bytes.substr(sizeof size + size);
}

Charsmap::Found Charsmap::longest(std::string_view text) const {
  Found found;
  std::uint32_t at = offset(units_[0]);
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    at ^= byte;
    if (at >= units_.size() || label(units_[at]) != byte) break;
    const bool is_word = ends_word(units_[at]);
    at ^= offset(units_[at]);
    if (!is_word || at >= units_.size()) continue;
    const std::uint32_t begin = value(units_[at]);
    if (begin < texts_.size()) found = {texts_.c_str() + begin, i + 1};
  }
  return found;
}

}  // namespace apps
