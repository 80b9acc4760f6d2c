#pragma once
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "core/fail.hpp"
#include "stretto/dtype.hpp"

// The dispatch from an element type as a value to code that is compiled for it.
namespace stretto {

// Calls run(a value of the C++ type).
template <class Run>
void with_element_type(DType dtype, Run&& run) {
  switch (dtype) {
    case DType::f64: return run(double{});
    case DType::f32: return run(float{});
    case DType::bf16: return run(bf16{});
    case DType::f16: return run(f16{});
    case DType::i8: return run(std::int8_t{});
    case DType::u8: return run(std::uint8_t{});
    case DType::i32: return run(std::int32_t{});
    case DType::u32: return run(std::uint32_t{});
    case DType::i64: return run(std::int64_t{});
    case DType::u64: return run(std::uint64_t{});
    case DType::f8e4m3: return run(f8e4m3{});
    case DType::f8e5m2: return run(f8e5m2{});
  }
  fail(ErrorCode::invalid_argument, "{} is not the number of an element type; use a DType.", static_cast<int>(dtype));
}

// Like with_element_type, for floating-point types only.
template <class Run>
void with_float_type(DType dtype, Run&& run) {
  with_element_type(dtype, [&]<class T>(T zero) {
    if constexpr (std::is_integral_v<T>) {
      fail(ErrorCode::invalid_argument, "Elements of {} are not floating-point numbers; use f64, f32, or a narrower type.",
           name(dtype));
    } else {
      run(zero);
    }
  });
}

// The number rounded to the nearest integer, as a T.
template <class T>
T to_integer(double value) {
  const double rounded = std::nearbyint(value);
  // Compared with 2^(number of value bits), which is exact in f64; the largest integer of 64 bits is not.
  const double end = std::ldexp(1.0, std::numeric_limits<T>::digits);
  require(rounded < end && rounded >= static_cast<double>(std::numeric_limits<T>::lowest()),
          "{} does not fit into an element of {}.", value, name(dtype_of<T>));
  return static_cast<T>(rounded);
}

}  // namespace stretto
