#pragma once
#include <cmath>
#include <cstdint>

namespace perf {

// SplitMix64 (Steele et al. 2014) of a position: a random number without state.
inline std::uint64_t random_at(std::uint64_t seed, std::int64_t rank, std::int64_t element) {
  std::uint64_t x = seed * 0x9e3779b97f4a7c15ULL + static_cast<std::uint64_t>(rank) * 0xd1b54a32d192ed03ULL +
                    static_cast<std::uint64_t>(element) * 0x8cb92ba72f3d8dd7ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

// A normal deviate (Box and Muller 1958).
inline double normal_at(std::uint64_t seed, std::int64_t rank, std::int64_t element) {
  const auto uniform = [&](std::int64_t i) { return (static_cast<double>(random_at(seed, rank, i) >> 11) + 0.5) * 0x1p-53; };
  return std::sqrt(-2 * std::log(uniform(2 * element))) * std::cos(2 * M_PI * uniform(2 * element + 1));
}

}  // namespace perf
