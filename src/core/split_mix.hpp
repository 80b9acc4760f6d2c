#pragma once
#include <cstdint>

// SplitMix64 (Steele et al. 2014): random numbers whose only state is a counter.
namespace stretto {

constexpr std::uint64_t split_mix_step = 0x9e3779b97f4a7c15U;

// The last steps of SplitMix64: a bijection that mixes all bits.
constexpr std::uint64_t split_mixed(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

}  // namespace stretto
