#pragma once
#include <bit>
#include <cstdint>

#include "stretto/dtype.hpp"

// Constants of the IEEE-like formats narrower than f32, by which the scalar types and the vector kernels convert. (bf16 is
// the upper half of an f32 and needs none of them.)
namespace stretto {

template <class T>
struct FloatFormat;

template <>
struct FloatFormat<f16> {
  static constexpr int mantissa_bits = 10;
  static constexpr int bias = 15;
  static constexpr std::uint32_t sign = 0x8000;
  static constexpr std::uint32_t first_special = 0x7c00;  // the first of infinity and NaN
  static constexpr std::uint32_t nan = 0x7e00;
  static constexpr float first_too_large = 65520;  // magnitudes from here on round to too_large
  static constexpr std::uint32_t too_large = 0x7c00;
};

template <>
struct FloatFormat<f8e5m2> {
  static constexpr int mantissa_bits = 2;
  static constexpr int bias = 15;
  static constexpr std::uint32_t sign = 0x80;
  static constexpr std::uint32_t first_special = 0x7c;
  static constexpr std::uint32_t nan = 0x7e;
  static constexpr float first_too_large = 61440;
  static constexpr std::uint32_t too_large = 0x7c;
};

template <>
struct FloatFormat<f8e4m3> {
  static constexpr int mantissa_bits = 3;
  static constexpr int bias = 7;
  static constexpr std::uint32_t sign = 0x80;
  static constexpr std::uint32_t first_special = 0x7f;
  static constexpr std::uint32_t nan = 0x7f;
  static constexpr float first_too_large = 0x1.d00002p8F;  // 464 still rounds to 448, which is even
  static constexpr std::uint32_t too_large = 0x7f;
};

// Constants derived from these, in the bits of f32.
template <class T>
struct FloatFormatBits : FloatFormat<T> {
  using Format = FloatFormat<T>;
  static constexpr int dropped_bits = 23 - Format::mantissa_bits;
  static constexpr int sign_shift = 32 - std::bit_width(Format::sign);
  static constexpr std::uint32_t rebias = static_cast<std::uint32_t>(127 - Format::bias) << 23;
  static constexpr std::uint32_t first_normal = static_cast<std::uint32_t>(128 - Format::bias) << 23;
  static constexpr std::uint32_t first_too_large_bits = std::bit_cast<std::uint32_t>(Format::first_too_large);
  static constexpr std::uint32_t infinity = 0x7f800000;
  // The unit of subnormal numbers, and the power of two that has this unit in the last place.
  static constexpr float unit =
      std::bit_cast<float>(static_cast<std::uint32_t>(128 - Format::bias - Format::mantissa_bits) << 23);
  static constexpr float rounder = unit * 0x1p23F;
};

}  // namespace stretto
