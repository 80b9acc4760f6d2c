#pragma once
#include <cstdint>
#include <vector>

// The balanced cut of count elements into parts, in order: their sizes differ by at most one, and the larger parts come
// first.
namespace stretto {

// Part i begins here, and ends where part i + 1 begins. i may be `parts`, one behind the last.
constexpr std::int64_t part_begin(std::int64_t count, int parts, int i) {
  const std::int64_t quotient = count / parts;
  const std::int64_t rest = count % parts;
  return quotient * i + (i < rest ? i : rest);
}

constexpr std::int64_t part_size(std::int64_t count, int parts, int i) {
  return part_begin(count, parts, i + 1) - part_begin(count, parts, i);
}

inline std::vector<std::int64_t> part_sizes(std::int64_t count, int parts) {
  std::vector<std::int64_t> sizes;
  sizes.reserve(static_cast<std::size_t>(parts));
  for (int i = 0; i < parts; ++i) sizes.push_back(part_size(count, parts, i));
  return sizes;
}

}  // namespace stretto
