#include "server/filters/key_cache.hpp"

#include <xxhash.h>

#include <algorithm>
#include <cstring>

#include "core/fail.hpp"

namespace stretto {
namespace {

// The message with `to` in place of `count` bytes from `begin` on.
Tensor replaced(const Tensor& bytes, std::size_t begin, std::size_t count, const void* to, std::size_t to_count) {
  Tensor result({static_cast<std::int64_t>(bytes.bytes() - count + to_count)}, DType::u8);
  const auto* const from = static_cast<const std::byte*>(bytes.raw());
  auto* const at = static_cast<std::byte*>(result.raw());
  std::copy_n(from, begin, at);
  std::memcpy(at + begin, to, to_count);
  std::copy_n(from + begin + count, bytes.bytes() - begin - count, at + begin + to_count);
  return result;
}

}  // namespace

Tensor KeyCache::shortened(const Place& place, const Tensor& bytes, std::size_t begin, std::size_t count) {
  const std::size_t key_bytes = count * sizeof(std::uint64_t);
  const auto known = last_.find(place);
  const auto* const keys = static_cast<const std::byte*>(bytes.raw()) + begin;
  if (known != last_.end() && count > 1 && known->second.keys.size() == key_bytes &&
      std::equal(known->second.keys.begin(), known->second.keys.end(), keys)) {
    return replaced(bytes, begin, key_bytes, &known->second.signature, sizeof(std::uint64_t));
  }
  note(place, bytes, begin, count);
  return {};
}

void KeyCache::note(const Place& place, const Tensor& bytes, std::size_t begin, std::size_t count) {
  const auto* const keys = static_cast<const std::byte*>(bytes.raw()) + begin;
  const std::size_t key_bytes = count * sizeof(std::uint64_t);
  last_[place] = {{keys, keys + key_bytes}, XXH3_64bits(keys, key_bytes)};
}

Tensor KeyCache::restored(const Place& place, const Tensor& bytes, std::size_t begin) const {
  const auto known = last_.find(place);
  std::uint64_t signature = 0;
  ensure(bytes.bytes() >= begin + sizeof signature, "A message with {} bytes has no signature of keys.", bytes.bytes());
  std::memcpy(&signature, static_cast<const std::byte*>(bytes.raw()) + begin, sizeof signature);
  ensure(known != last_.end() && known->second.signature == signature,
         "A message to part {} of table {} names keys that were not the last ones.", place.second, place.first);
  return replaced(bytes, begin, sizeof signature, known->second.keys.data(), known->second.keys.size());
}

}  // namespace stretto
