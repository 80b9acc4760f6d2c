#include <xxhash.h>

#include <algorithm>

#include "core/fail.hpp"
#include "stretto/server.hpp"

namespace stretto {
namespace {

std::uint64_t hashed(std::uint64_t a, std::uint64_t b) {
  const std::uint64_t both[] = {a, b};
  return XXH3_64bits(both, sizeof both);
}

}  // namespace

void HashRing::add(int server) {
  for (int point = 0; point < points_; ++point) {
    ring_.emplace_back(hashed(static_cast<std::uint64_t>(server), static_cast<std::uint64_t>(point) + 1), server);
  }
  std::ranges::sort(ring_);
}

void HashRing::remove(int server) {
  std::erase_if(ring_, [&](const auto& point) { return point.second == server; });
}

int HashRing::owner(std::uint64_t key) const {
  require(!ring_.empty(), "Key {} has no server, since the ring has none.", key);
  const auto behind = std::ranges::upper_bound(ring_, hashed(key, 0), {}, [](const auto& point) { return point.first; });
  return (behind == ring_.end() ? ring_.front() : *behind).second;
}

}  // namespace stretto
