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

std::size_t HashRing::point_behind(std::uint64_t key) const {
  const auto behind = std::ranges::upper_bound(ring_, hashed(key, 0), {}, [](const auto& point) { return point.first; });
  return behind == ring_.end() ? 0 : static_cast<std::size_t>(behind - ring_.begin());
}

int HashRing::owner(std::uint64_t key) const {
  require(!ring_.empty(), "Key {} has no server: the ring is empty.", key);
  return ring_[point_behind(key)].second;
}

std::vector<int> HashRing::order(std::uint64_t key) const {
  std::vector<int> servers;
  const std::size_t begin = point_behind(key);
  for (std::size_t i = 0; i < ring_.size(); ++i) {
    const int server = ring_[(begin + i) % ring_.size()].second;
    if (std::ranges::find(servers, server) == servers.end()) servers.push_back(server);
  }
  return servers;
}

}  // namespace stretto
