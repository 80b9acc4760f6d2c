#pragma once
#include <type_traits>

#include "core/fail.hpp"
#include "stretto/tensor.hpp"

// What kernels ask of their arguments, and the step from a tensor's element type to code compiled for it.
namespace stretto::kernels {

template <class T>
using Accumulator = std::conditional_t<std::is_same_v<T, double>, double, float>;

// Calls run with a value of the C++ type for any of the four types of which tensors compute.
template <class Run>
void with_element_type(DType dtype, Run&& run) {
  switch (dtype) {
    case DType::f64: return run(double{});
    case DType::f32: return run(float{});
    case DType::bf16: return run(bf16{});
    case DType::f16: return run(f16{});
    default: break;
  }
  fail(ErrorCode::invalid_argument, "Elements of {} cannot be computed with here; use f64, f32, bf16 or f16.", name(dtype));
}

// The same for the types that all kernels compute in.
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
