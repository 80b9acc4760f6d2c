#pragma once
#include <cmath>
#include <cstdint>

#include "stretto/tensor.hpp"

// Normal deviates by index: the same in every run and on every rank.
namespace stretto::gaussian_data {

inline double uniform(std::uint64_t x) {  // in (0, 1); SplitMix64 (Steele et al. 2014)
  x *= 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return (static_cast<double>((x ^ (x >> 31)) >> 11) + 0.5) * 0x1p-53;
}
inline double normal(int salt, std::int64_t i) {  // Box and Muller 1958
  const auto at = (static_cast<std::uint64_t>(salt) << 40) + 2 * static_cast<std::uint64_t>(i) + 1;
  return std::sqrt(-2 * std::log(uniform(at))) * std::cos(2 * M_PI * uniform(at + 1));
}
inline Tensor gaussian(std::int64_t count, DType dtype, int salt) {
  Tensor tensor({count}, dtype);
  for (std::int64_t i = 0; i < count; ++i) tensor.set(i, normal(salt, i));
  return tensor;
}

}  // namespace stretto::gaussian_data
