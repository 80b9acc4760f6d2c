#pragma once
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "device/cpu/quantize/quantize_plain.hpp"
#include "device/kernels/tested_kernels.hpp"
#include "stretto/kernels.hpp"

// Numbers of many kinds, and their way through quantized records.
namespace stretto::kernels::tested {

using enum QuantizedFormat;
inline constexpr QuantizedFormat all_formats[] = {int8, int4, fp8, onebit};
constexpr float infinity = std::numeric_limits<float>::infinity();
inline constexpr float nan = std::numeric_limits<float>::quiet_NaN();
inline constexpr float largest_float = std::numeric_limits<float>::max();

enum class Kind { normal, mixed, bits, huge, tiny, denormal, halves, edges };
inline constexpr Kind finite_kinds[] = {Kind::normal,   Kind::mixed,  Kind::huge, Kind::tiny,
                                        Kind::denormal, Kind::halves, Kind::edges};

// An element near the midpoint of two codes, in a group whose largest element is `largest`: its product with the inverse of
// the scale may be on the wrong side.
inline float edge(QuantizedFormat format, float largest, std::mt19937& generator) {
  const ScaleRule rule = scale_rule(format, false);
  const float middle = std::floor(static_cast<float>(generator() % 1000) * (rule.range - 1) * 0.001F) + 0.5F;
  float x = middle * rule.scale(largest);
  const float towards = generator() % 2 == 0 ? 0 : infinity;
  for (unsigned step = generator() % 3; step > 0; --step) x = std::nextafter(x, towards);
  return generator() % 2 == 0 ? x : -x;
}

inline std::vector<float> numbers(std::int64_t count, Kind kind, unsigned seed = 1) {
  std::vector<float> result(static_cast<std::size_t>(count));
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::uniform_int_distribution<int> exponent(-140, 120);
  const float largest = 1 + 0.137F * static_cast<float>(seed % 7);
  for (float& x : result) {
    switch (kind) {
      case Kind::normal: x = normal(generator); break;
      case Kind::mixed: x = std::ldexp(normal(generator), exponent(generator) / 10); break;
      case Kind::bits: x = std::bit_cast<float>(static_cast<std::uint32_t>(generator())); break;
      case Kind::huge: x = generator() % 3 == 0 ? largest_float : uniform(generator) * largest_float; break;
      case Kind::tiny: x = uniform(generator) * 0x1p-113F; break;
      case Kind::denormal: x = uniform(generator) * 0x1p-126F; break;
      case Kind::halves: x = std::floor(uniform(generator) * 254) * 0.5F * 1.1F; break;
      case Kind::edges:
        x = (&x - result.data()) % 64 == 0 ? largest : edge(generator() % 2 == 0 ? int8 : int4, largest, generator);
        break;
    }
  }
  return result;
}

inline float scale_of(QuantizedFormat format, const std::vector<std::uint8_t>& records, std::int64_t element) {
  const std::uint8_t* const record = records.data() + element / group_elements(format) * record_bytes(format);
  std::uint32_t bits = 0;
  std::memcpy(&bits, record, format == int4 ? 2 : 4);
  return std::bit_cast<float>(format == int4 ? bits << 16 : bits);
}

inline std::vector<std::uint8_t> quantized(QuantizedFormat format, const std::vector<float>& x,
                                           const QuantizeOptions& options = {}) {
  const auto count = static_cast<std::int64_t>(x.size());
  std::vector<std::uint8_t> records(static_cast<std::size_t>(packed_bytes(format, count)));
  quantize(format, DType::f32, x.data(), records.data(), count, options);
  return records;
}
inline std::vector<float> dequantized(QuantizedFormat format, const std::vector<std::uint8_t>& records, std::size_t count) {
  std::vector<float> out(count);
  dequantize(format, records.data(), DType::f32, out.data(), static_cast<std::int64_t>(count));
  return out;
}
inline std::vector<float> there_and_back(QuantizedFormat format, const std::vector<float>& x,
                                         const QuantizeOptions& options = {}) {
  return dequantized(format, quantized(format, x, options), x.size());
}

}  // namespace stretto::kernels::tested
