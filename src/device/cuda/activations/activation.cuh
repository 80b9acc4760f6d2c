#pragma once
#include "device/cuda/arithmetic.cuh"
#include "device/cuda/for_each_element.cuh"

// Bodies (for_each_element.cuh) of an activation of single elements. A Function has value<T>(x) and slope<T>(x), in the
// accumulator type of T. Its fused operations are written out, so that an element has the same bits in a pack and alone.
namespace stretto::gpu_code {

// a / b, as accurate as elements of T need.
template <class T, class A = Accumulator<T>>
__device__ inline A quotient(A a, A b) {
  if constexpr (sizeof(T) == 2) {
    return __fdividef(a, b);  // b is below 2^126
  } else {
    return a / b;
  }
}

template <class T, class Function>
struct ActivationForward {
  static constexpr int pack = 16 / sizeof(Raw<T>);
  static constexpr int together = 2;

  const void* x;
  void* y;

  template <int W, int U>
  __device__ void run(std::int64_t i, std::int64_t step) const {
    Pack<T, W> packs[U];
#pragma unroll
    for (int u = 0; u < U; ++u) packs[u] = load<T, W>(x, i + u * step);
#pragma unroll
    for (int u = 0; u < U; ++u) {
#pragma unroll
      for (int w = 0; w < W; ++w) packs[u].at[w] = rounded<T>(Function::template value<T>(widened<T>(packs[u].at[w])));
      store<T, W>(y, i + u * step, packs[u]);
    }
  }
};

template <class T, class Function>
struct ActivationBackward {
  static constexpr int pack = 16 / sizeof(Raw<T>);
  static constexpr int together = 2;

  const void* x;
  const void* dy;
  void* dx;

  template <int W, int U>
  __device__ void run(std::int64_t i, std::int64_t step) const {
    Pack<T, W> of_x[U];
    Pack<T, W> of_dy[U];
#pragma unroll
    for (int u = 0; u < U; ++u) {
      of_x[u] = load<T, W>(x, i + u * step);
      of_dy[u] = load<T, W>(dy, i + u * step);
    }
#pragma unroll
    for (int u = 0; u < U; ++u) {
#pragma unroll
      for (int w = 0; w < W; ++w)
        of_x[u].at[w] = rounded<T>(widened<T>(of_dy[u].at[w]) * Function::template slope<T>(widened<T>(of_x[u].at[w])));
      store<T, W>(dx, i + u * step, of_x[u]);
    }
  }
};

template <class Function>
void activate(const char* what, const Tensor& x, const Tensor& y, GpuStream stream) {
  kernels::with_compute_type(x.dtype(), [&]<class T>(T) {
    using Body = ActivationForward<T, Function>;
    Range range(x.size(), Body::pack, y.raw(), sizeof(T));
    range.also(x.raw(), sizeof(T));
    for_each_element(what, range, Body{x.raw(), y.raw()}, stream);
  });
}

template <class Function>
void activate_backward(const char* what, const Tensor& x, const Tensor& dy, const Tensor& dx, GpuStream stream) {
  kernels::with_compute_type(x.dtype(), [&]<class T>(T) {
    using Body = ActivationBackward<T, Function>;
    Range range(x.size(), Body::pack, dx.raw(), sizeof(T));
    range.also(x.raw(), sizeof(T));
    range.also(dy.raw(), sizeof(T));
    for_each_element(what, range, Body{x.raw(), dy.raw(), dx.raw()}, stream);
  });
}

}  // namespace stretto::gpu_code
