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
  return owner(key, [](int) { return true; });
}

int HashRing::owner(std::uint64_t key, const std::function<bool(int server)>& has_room) const {
  const auto behind = std::ranges::upper_bound(ring_, hashed(key, 0), {}, [](const auto& point) { return point.first; });
  const auto begin = static_cast<std::size_t>(behind - ring_.begin());
  for (std::size_t i = 0; i < ring_.size(); ++i) {
    const int server = ring_[(begin + i) % ring_.size()].second;
    if (has_room(server)) return server;
  }
  fail(ErrorCode::invalid_argument, "Key {} has no server: the ring has {} points, and none of a server with room.", key,
       ring_.size());
}

}  // namespace stretto
