#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>

#include "stretto/export.hpp"

// Element types and the operations that combine them.
namespace stretto {

enum class DType : std::uint8_t { f64, f32, bf16, f16 };

constexpr std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::f64: return 8;
    case DType::f32: return 4;
    case DType::bf16:
    case DType::f16: return 2;
  }
  return 0;
}

STRETTO_API const char* name(DType dtype);
STRETTO_API DType dtype_from_name(const char* name);  // "f64", "fp64", ...; throws Error naming the choices

// What two contributions become. 16-bit types are combined in f32 and rounded once per combination.
enum class ReduceOp : std::uint8_t { sum, prod, min, max };

STRETTO_API const char* name(ReduceOp op);

// The upper half of an f32: 8 bits of exponent, 7 of mantissa. Rounds to nearest even; NaN stays NaN.
struct bf16 {
  std::uint16_t bits = 0;

  bf16() = default;
  explicit bf16(float value) {
    const auto u = std::bit_cast<std::uint32_t>(value);
    const bool nan = (u & 0x7fffffffU) > 0x7f800000U;
    bits = static_cast<std::uint16_t>(nan ? (u >> 16) | 0x40U : (u + 0x7fffU + ((u >> 16) & 1U)) >> 16);
  }
  explicit operator float() const { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }
  bool operator==(const bf16&) const = default;
};

// IEEE 754 half precision: 5 bits of exponent, 10 of mantissa. Rounds to nearest even; NaN stays NaN.
struct STRETTO_API f16 {
  std::uint16_t bits = 0;

  f16() = default;
  explicit f16(float value);
  explicit operator float() const;
  bool operator==(const f16&) const = default;
};

template <class T>
struct dtype_of_t;
template <>
struct dtype_of_t<double> {
  static constexpr DType value = DType::f64;
};
template <>
struct dtype_of_t<float> {
  static constexpr DType value = DType::f32;
};
template <>
struct dtype_of_t<bf16> {
  static constexpr DType value = DType::bf16;
};
template <>
struct dtype_of_t<f16> {
  static constexpr DType value = DType::f16;
};
template <class T>
inline constexpr DType dtype_of = dtype_of_t<T>::value;

}  // namespace stretto
