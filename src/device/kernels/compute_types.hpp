#pragma once
#include <type_traits>

#include "core/fail.hpp"
#include "stretto/dtype.hpp"

// The types in which kernels compute, and the dispatch from a compute type as a value to code that is compiled for it.
namespace stretto::kernels {

// The type in which elements of T are computed: f64, f32 and integers of 32 and 64 bits in their own, narrower floats in
// f32, narrower integers in 32 bits.
template <class T>
struct AccumulatorOf {
  using type = std::conditional_t<std::is_arithmetic_v<T>, T, float>;
};
template <>
struct AccumulatorOf<std::int8_t> {
  using type = std::int32_t;
};
template <>
struct AccumulatorOf<std::uint8_t> {
  using type = std::uint32_t;
};
template <class T>
using Accumulator = typename AccumulatorOf<T>::type;

// Whether all kernels compute in a type, not only those of collectives.
constexpr bool is_compute_type(DType dtype) {
  return dtype == DType::f64 || dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16;
}

inline void check_compute_type(DType dtype) {
  require(is_compute_type(dtype), "Elements of {} can only be reduced and converted; compute in f64, f32, bf16 or f16.",
          name(dtype));
}

// Calls run with a value of the C++ type, for these types.
template <class Run>
void with_compute_type(DType dtype, Run&& run) {
  check_compute_type(dtype);
  switch (dtype) {
    case DType::f64: return run(double{});
    case DType::f32: return run(float{});
    case DType::bf16: return run(bf16{});
    default: return run(f16{});
  }
}

// Calls run with a value of the C++ type of a gradient, which is T or its accumulator type.
template <class T, class Run>
void with_gradient_type(DType gradient, Run&& run) {
  if (gradient == dtype_of<T>) return run(T{});
  if constexpr (!std::is_same_v<T, Accumulator<T>>) run(Accumulator<T>{});
}

}  // namespace stretto::kernels
