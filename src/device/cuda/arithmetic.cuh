#pragma once
#include <cuda_runtime.h>

// Operations that the compiler neither fuses nor splits: the result of an element must not depend on the surrounding code,
// which differs between packs and single elements.
namespace stretto::gpu_code {

__device__ inline float fused(float a, float b, float c) { return __fmaf_rn(a, b, c); }
__device__ inline double fused(double a, double b, double c) { return __fma_rn(a, b, c); }
__device__ inline float product(float a, float b) { return __fmul_rn(a, b); }
__device__ inline double product(double a, double b) { return __dmul_rn(a, b); }

// 2^x to the accuracy of the special function units, which suffices for results of 16 bits. Subnormal results are zero.
__device__ inline float fast_exp2(float x) {
#ifdef __CUDA_ARCH__
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
#else
  return exp2f(x);
#endif
}

// e^x, as accurate as elements of type T need.
template <class T>
__device__ inline float exponential_of(float x) {
  if constexpr (sizeof(T) == 2) {
    return fast_exp2(product(x, 1.44269504F));
  } else {
    return expf(x);
  }
}
template <class T>
__device__ inline double exponential_of(double x) {
  return exp(x);
}

struct Plus {
  template <class A>
  __device__ A operator()(A a, A b) const {
    return a + b;
  }
};
// The result is NaN if a or b is.
struct Largest {
  __device__ float operator()(float a, float b) const {
#ifdef __CUDA_ARCH__
    float result;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
    return result;
#else
    return a < b || b != b ? b : a;
#endif
  }
  __device__ double operator()(double a, double b) const { return a < b || b != b ? b : a; }
};

}  // namespace stretto::gpu_code
