#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>

#include "stretto/export.hpp"

// Element types and the operations that combine them.
namespace stretto {

enum class DType : std::uint8_t { f64, f32, bf16, f16, i8, u8, i32, u32, i64, u64, f8e4m3, f8e5m2 };

constexpr std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::f64:
    case DType::i64:
    case DType::u64: return 8;
    case DType::f32:
    case DType::i32:
    case DType::u32: return 4;
    case DType::bf16:
    case DType::f16: return 2;
    case DType::i8:
    case DType::u8:
    case DType::f8e4m3:
    case DType::f8e5m2: return 1;
  }
  return 0;
}
// Whether dtype is a floating-point type of 16 or 8 bits. Reductions of such a type accumulate in f32 and round once.
constexpr bool is_narrow(DType dtype) {
  return dtype == DType::bf16 || dtype == DType::f16 || dtype == DType::f8e4m3 || dtype == DType::f8e5m2;
}

STRETTO_API const char* name(DType dtype);
STRETTO_API DType dtype_from_name(const char* name);  // "f64", "fp64", ...; throws Error naming the choices
// The name that flags of training programs use: "fp64", "fp32", "bf16", "fp16".
STRETTO_API const char* training_name(DType dtype);

// How the contributions of ranks are combined. avg is the sum, divided exactly once by the number of ranks; integers
// round towards zero. premul_sum is the sum of the contributions, each multiplied by its rank's factor
// (OperationOptions::factor). Integer arithmetic wraps around.
enum class ReduceOp : std::uint8_t { sum, prod, min, max, avg, premul_sum };

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

// The 8-bit formats of the Open Compute Project (OCP OFP8; Micikevicius et al. 2022). Both round to nearest even, NaN
// stays NaN, and values that are too large do not saturate. PyTorch's float8_e4m3fn and float8_e5m2 convert the same
// way.

// 4 bits of exponent, 3 of mantissa; largest value 448. There is no infinity: infinity and values that round beyond 448
// become NaN.
struct STRETTO_API f8e4m3 {
  std::uint8_t bits = 0;

  f8e4m3() = default;
  explicit f8e4m3(float value);
  explicit operator float() const;
  bool operator==(const f8e4m3&) const = default;
};

// The upper half of an f16: 5 bits of exponent, 2 of mantissa; largest value 57344. Values that round beyond it become
// infinite.
struct STRETTO_API f8e5m2 {
  std::uint8_t bits = 0;

  f8e5m2() = default;
  explicit f8e5m2(float value);
  explicit operator float() const;
  bool operator==(const f8e5m2&) const = default;
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
template <>
struct dtype_of_t<std::int8_t> {
  static constexpr DType value = DType::i8;
};
template <>
struct dtype_of_t<std::uint8_t> {
  static constexpr DType value = DType::u8;
};
template <>
struct dtype_of_t<std::int32_t> {
  static constexpr DType value = DType::i32;
};
template <>
struct dtype_of_t<std::uint32_t> {
  static constexpr DType value = DType::u32;
};
template <>
struct dtype_of_t<std::int64_t> {
  static constexpr DType value = DType::i64;
};
template <>
struct dtype_of_t<std::uint64_t> {
  static constexpr DType value = DType::u64;
};
template <>
struct dtype_of_t<f8e4m3> {
  static constexpr DType value = DType::f8e4m3;
};
template <>
struct dtype_of_t<f8e5m2> {
  static constexpr DType value = DType::f8e5m2;
};
template <class T>
inline constexpr DType dtype_of = dtype_of_t<T>::value;

}  // namespace stretto
