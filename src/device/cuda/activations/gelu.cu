// GELU and its derivative; device/cpu/activations/gelu.cpp explains the formulas.
#include "device/cuda/activations/activation.cuh"
#include "device/cuda/cuda_kernels.hpp"

namespace stretto {
namespace gpu_code {
namespace {

constexpr double cubic = 0.044715;
constexpr double linear_log2 = 2.3022081981443249;  // 2 sqrt(2/pi) log2(e)
constexpr double linear = 1.5957691216057308;       // 2 sqrt(2/pi)

// 2^(a b), with the integer part and the rest of the product taken separately, so that no digits are lost.
__device__ inline float exp2_of_product(float a, float b) {
  const float whole = rintf(product(a, b));
  return ldexpf(exp2f(fused(a, b, -whole)), static_cast<int>(whole));
}
__device__ inline double exp2_of_product(double a, double b) {
  const double whole = rint(product(a, b));
  return ldexp(exp2(fused(a, b, -whole)), static_cast<int>(whole));
}

template <class A>
struct Exponential {
  A value;   // exp(-2u)
  A x;       // limited to the bound
  A square;  // of this x
};

template <class T, class A = Accumulator<T>>
__device__ inline Exponential<A> exponential(A x) {
  constexpr A bound = sizeof(A) == 4 ? 10 : 20;
  A bounded = x;  // NaN stays NaN
  if (x > bound) bounded = bound;
  if (x < -bound) bounded = -bound;
  const A square = product(bounded, bounded);
  const A factor = fused(square, static_cast<A>(-linear_log2 * cubic), static_cast<A>(-linear_log2));
  if constexpr (sizeof(T) == 2) {
    return {fast_exp2(product(bounded, factor)), bounded, square};
  } else {
    return {exp2_of_product(bounded, factor), bounded, square};
  }
}

template <class T, class A = Accumulator<T>>
__device__ inline A gelu(A x) {
  return quotient<T>(x, exponential<T>(x).value + 1);
}

template <class T, class A = Accumulator<T>>
__device__ inline A gelu_derivative(A x) {
  const Exponential<A> e = exponential<T>(x);
  const A g = quotient<T>(A{1}, e.value + 1);
  const A slope = fused(e.square, static_cast<A>(3 * linear * cubic), static_cast<A>(linear));
  const A x_slope_e = product(product(e.x, slope), product(e.value, g));
  return fused(x_slope_e, g, g);
}

struct Gelu {
  template <class T>
  __device__ static Accumulator<T> value(Accumulator<T> x) {
    return gelu<T>(x);
  }
  template <class T>
  __device__ static Accumulator<T> slope(Accumulator<T> x) {
    return gelu_derivative<T>(x);
  }
};

template <class T>
struct ForwardWithBias {
  static constexpr int pack = 16 / sizeof(Raw<T>);
  static constexpr int together = 2;

  void* x;
  const void* bias;
  void* y;
  std::int64_t columns;

  template <int W, int U>
  __device__ void run(std::int64_t i, std::int64_t step) const {
    Pack<T, W> packs[U];
#pragma unroll
    for (int u = 0; u < U; ++u) packs[u] = load<T, W>(x, i + u * step);
#pragma unroll
    for (int u = 0; u < U; ++u) {
      const Pack<T, W> of_columns = load<T, W>(bias, column_of(i + u * step, columns));
      Pack<T, W> result;
#pragma unroll
      for (int w = 0; w < W; ++w) {
        const Raw<T> sum = rounded<T>(widened<T>(packs[u].at[w]) + widened<T>(of_columns.at[w]));
        packs[u].at[w] = sum;
        result.at[w] = rounded<T>(gelu<T>(widened<T>(sum)));  // of the rounded sum, which backward will read
      }
      store<T, W>(x, i + u * step, packs[u]);
      store<T, W>(y, i + u * step, result);
    }
  }
};

}  // namespace
}  // namespace gpu_code

using namespace gpu_code;

void CudaKernels::gelu_forward(const Tensor& x, const Tensor& y, GpuStream stream) {
  activate<Gelu>("compute GELU", x, y, stream);
}

void CudaKernels::gelu_backward(const Tensor& x, const Tensor& dy, const Tensor& dx, GpuStream stream) {
  activate_backward<Gelu>("compute the gradient of GELU", x, dy, dx, stream);
}

void CudaKernels::add_bias_gelu(const Tensor& x, const Tensor& bias, const Tensor& y, GpuStream stream) {
  kernels::with_compute_type(x.dtype(), [&]<class T>(T) {
    Range range(x.size(), ForwardWithBias<T>::pack, x.raw(), sizeof(T));
    range.also(y.raw(), sizeof(T));
    range.also(bias.raw(), sizeof(T));
    range.in_rows_of(x.columns());
    for_each_element("add a bias and compute GELU", range, ForwardWithBias<T>{x.raw(), bias.raw(), y.raw(), x.columns()},
                     stream);
  });
}

}  // namespace stretto
