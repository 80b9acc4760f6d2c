#pragma once
#include <cstdint>

#include "core/split_mix.hpp"

// Random numbers of 32 bits that follow from a seed and the number of an element alone, the same on every processor: a hash
// whose two multiplications of 32 bits are cheap in vectors.
namespace stretto::kernels {

// The part of the hash that depends on the seed and on the upper half of element numbers.
struct DrawKey {
  std::uint32_t before, between;

  constexpr DrawKey(std::uint64_t seed, std::uint32_t upper) : before(0), between(0) {
    const std::uint64_t z = split_mixed(seed + (upper + std::uint64_t{1}) * split_mix_step);
    before = static_cast<std::uint32_t>(z);
    between = static_cast<std::uint32_t>(z >> 32);
  }
};
constexpr std::uint32_t draw_factors[2] = {0x7feb352d, 0x846ca68b};
// Uniform in 0 .. 2^32 - 1.
constexpr std::uint32_t draw(const DrawKey& key, std::uint32_t lower) {
  constexpr std::uint32_t first = draw_factors[0], second = draw_factors[1];  // a GPU has no array of the host's
  std::uint32_t h = lower ^ key.before;
  h = (h ^ (h >> 16)) * first;
  h = ((h ^ (h >> 15)) + key.between) * second;
  return h ^ (h >> 16);
}

// ---- dropout: the element in a column of a row is kept if its draw is no less than dropped_below().
constexpr DrawKey dropout_key(std::int64_t row_draw, std::uint64_t number) {
  return {static_cast<std::uint64_t>(row_draw) + number, 0};
}
constexpr std::uint32_t dropped_below(double probability) { return static_cast<std::uint32_t>(probability * 0x1p32); }

}  // namespace stretto::kernels
