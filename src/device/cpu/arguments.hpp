#pragma once
#include <type_traits>

#include "core/fail.hpp"
#include "device/element_types.hpp"
#include "stretto/tensor.hpp"

// What kernels ask of their arguments, and the step from a tensor's element type to code compiled for it.
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
constexpr bool is_compute_type(DType dtype) { return dtype == DType::f64 || dtype == DType::f32 || dtype == DType::bf16; }

// Calls run with a value of the C++ type, for these types.
template <class Run>
void with_compute_type(DType dtype, Run&& run) {
  switch (dtype) {
    case DType::f64: return run(double{});
    case DType::f32: return run(float{});
    case DType::bf16: return run(bf16{});
    default: break;
  }
  fail(ErrorCode::invalid_argument, "Elements of {} can only be reduced and converted; compute in f64, f32 or bf16.",
       name(dtype));
}

// Throw a sentence that starts with the kernel's name where an argument does not fit.
void check_holds(const char* kernel, const char* argument, const Tensor& tensor, DType dtype, std::int64_t size);
void check_columns(const char* kernel, const char* argument, const Tensor& tensor, std::int64_t columns);

}  // namespace stretto::kernels
