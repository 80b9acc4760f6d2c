#pragma once
#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>

#include "core/draws.hpp"
#include "stretto/quantization.hpp"

// The parts of quantization that the host's plain and vector code and the GPU share: the layout of a record, its scale, and
// the random numbers of stochastic rounding. A record is its scale, little endian, then its codes:
//   int8, fp8  scale as f32; byte i is the code of element i
//   int4       scale as bf16; 16 words of 16 bits: word i holds the codes of elements i, i + 16, i + 32 and i + 48,
//              each of four bits in two's complement, the first in the lowest bits
//   onebit     scale as f32; bit i % 8 of byte i / 8 is 1 where element i is negative
//
// A scale has 16 significant bits (int4: 8), rounded up: the product of a code and a scale is exact in f32, and so is the
// remainder of an element. A scale is at least smallest_scale, so that its inverse is finite, and so small that every code
// times the scale is finite. A group with an infinite or NaN element is special: its scale, computed from its other
// elements, is stored as a negative number, and its finite codes have a smaller range (fp8: f8e5m2), which leaves three
// codes for infinity, -infinity and NaN. A special group in onebit has NaN as its scale, and all codes zero.
namespace stretto::kernels {

constexpr std::int64_t largest_group = 1024;
constexpr float smallest_scale = 0x1p-120F;
constexpr std::uint32_t large_scale_bits = 0x6f800000;  // 2^96: sums of thousands of elements with smaller scales are finite
constexpr std::uint32_t sign_bit = 0x80000000;
constexpr std::uint32_t infinity_bits = 0x7f800000;

// Computes a scale from the largest |x| of a group.
struct ScaleRule {
  float range;             // the largest code
  int dropped_bits;        // of the 23 bits of an f32's mantissa
  float largest_of_scale;  // the largest scale whose product with range is finite

  constexpr ScaleRule(float largest_code, int dropped)
      : range(largest_code),
        dropped_bits(dropped),
        largest_of_scale(std::bit_cast<float>(std::bit_cast<std::uint32_t>(std::numeric_limits<float>::max() / range) >>
                                              dropped << dropped)) {}
  constexpr float scale(float largest) const {
    const std::uint32_t mask = (1U << dropped_bits) - 1;
    const float rounded = std::bit_cast<float>((std::bit_cast<std::uint32_t>(largest / range) + mask) & ~mask);
    return std::min(std::max(rounded, smallest_scale), largest_of_scale);
  }
};

constexpr ScaleRule scale_rule(QuantizedFormat format, bool special) {
  switch (format) {
    case QuantizedFormat::int8: return {special ? 125.0F : 127.0F, 8};
    case QuantizedFormat::int4: return {special ? 5.0F : 7.0F, 16};
    default: return {special ? 57344.0F : 448.0F, 8};
  }
}
// The codes of infinity and NaN in a special group; -plus_infinity stands for -infinity.
constexpr int plus_infinity(QuantizedFormat format) { return format == QuantizedFormat::int8 ? 126 : 6; }
constexpr int not_a_number(QuantizedFormat format) { return format == QuantizedFormat::int8 ? 127 : 7; }

constexpr bool is_finite(float x) { return (std::bit_cast<std::uint32_t>(x) & ~sign_bit) < infinity_bits; }

// Added to a float of magnitude below 2^22, this leaves the nearest integer, ties to even, in the lowest bits.
constexpr float integer_rounder = 0x1.8p23F;

// The largest remainder that the nearest code leaves of an element. The product of an element and the scale's inverse has a
// rounding error; a remainder above this limit shows that it led to the wrong neighbour.
constexpr float nearest_limit(float scale) { return scale / 2; }

// Stochastic rounding adds a draw (draws.hpp) to the fraction in fixed point, and the carry rounds up. Elements i and i + 16
// of each 32 in a group share the draw of the first one's number: its lowest bits are those of element i, its highest those
// of element i + 16.
//
// Codes in fixed point: adding `zero` to a float of magnitude up to `range` leaves it in the lowest bits, with fraction_bits
// of them after the point. The product with the inverse and the addition have an error below 1 in the last bit, and below
// 1/2 before the sum is rounded.
struct FixedPoint {
  int fraction_bits;
  float zero;

  constexpr float unit() const { return 1 / static_cast<float>(1 << fraction_bits); }
};
constexpr FixedPoint fixed_point(QuantizedFormat format) {
  return format == QuantizedFormat::int8 ? FixedPoint{15, 0x1.8p8F} : FixedPoint{16, 0x1.8p7F};
}

// The mean of |x| in onebit comes from mean_lanes sums, each over every 16th element, which mean_of_sums adds pairwise.
// Terms are scaled down, so that the sum of finite terms is finite; if a term is not finite, the mean is NaN.
constexpr std::int64_t mean_lanes = 16;
constexpr float mean_factor = 0x1p-11F;

}  // namespace stretto::kernels
