// silu(gate) up and its gradients; device/cpu/activations/silu_gate.cpp explains the formulas.
#include "device/cuda/activations/activation.cuh"
#include "device/cuda/cuda_kernels.hpp"

namespace stretto {
namespace gpu_code {
namespace {

template <class A>
struct Sigmoid {
  A value, complement;  // s and 1 - s
  A g;                  // limited to the bound
};

template <class T, class A = Accumulator<T>>
__device__ inline Sigmoid<A> sigmoid(A g) {
  constexpr A bound = sizeof(A) == 4 ? 87 : 700;  // e is below 2^126
  A bounded = g;                                  // NaN stays NaN
  if (g > bound) bounded = bound;
  if (g < -bound) bounded = -bound;
  const A e = exponential_of<T>(-bounded);
  const A s = quotient<T>(A{1}, e + 1);
  return {s, product(e, s), bounded};
}

// The gate of element i of y, where y has so many columns; the up lies as many elements behind it.
__device__ inline std::int64_t gate_of(std::int64_t i, std::int64_t columns) { return 2 * i - column_of(i, columns); }

template <class T>
struct GateForward {
  static constexpr int pack = 16 / sizeof(Raw<T>);
  static constexpr int together = 2;

  const void* x;
  void* y;
  std::int64_t columns;

  template <int W, int U>
  __device__ void run(std::int64_t i, std::int64_t step) const {
    Pack<T, W> gates[U];
    Pack<T, W> ups[U];
#pragma unroll
    for (int u = 0; u < U; ++u) {
      const std::int64_t gate = gate_of(i + u * step, columns);
      gates[u] = load<T, W>(x, gate);
      ups[u] = load<T, W>(x, gate + columns);
    }
#pragma unroll
    for (int u = 0; u < U; ++u) {
#pragma unroll
      for (int w = 0; w < W; ++w) {
        const Accumulator<T> g = widened<T>(gates[u].at[w]);
        gates[u].at[w] = rounded<T>(product(product(g, sigmoid<T>(g).value), widened<T>(ups[u].at[w])));
      }
      store<T, W>(y, i + u * step, gates[u]);
    }
  }
};

template <class T>
struct GateBackward {
  static constexpr int pack = 16 / sizeof(Raw<T>);
  static constexpr int together = 1;

  const void* x;
  const void* dy;
  void* dx;
  std::int64_t columns;

  template <int W, int U>
  __device__ void run(std::int64_t i, std::int64_t /*step*/) const {
    static_assert(U == 1);
    const std::int64_t gate = gate_of(i, columns);
    Pack<T, W> gates = load<T, W>(x, gate);
    Pack<T, W> ups = load<T, W>(x, gate + columns);
    const Pack<T, W> of_dy = load<T, W>(dy, i);
#pragma unroll
    for (int w = 0; w < W; ++w) {
      const Accumulator<T> g = widened<T>(gates.at[w]);
      const Accumulator<T> d = widened<T>(of_dy.at[w]);
      const Sigmoid<Accumulator<T>> s = sigmoid<T>(g);
      const Accumulator<T> slope = fused(product(s.g, s.value), s.complement, s.value);
      gates.at[w] = rounded<T>(product(product(d, widened<T>(ups.at[w])), slope));
      ups.at[w] = rounded<T>(product(product(g, s.value), d));
    }
    store<T, W>(dx, gate, gates);
    store<T, W>(dx, gate + columns, ups);
  }
};

}  // namespace
}  // namespace gpu_code

using namespace gpu_code;

void CudaKernels::silu_gate_forward(const Tensor& x, const Tensor& y, GpuStream stream) {
  kernels::with_compute_type(x.dtype(), [&]<class T>(T) {
    Range range(y.size(), GateForward<T>::pack, y.raw(), sizeof(T));
    range.also(x.raw(), sizeof(T));
    range.in_rows_of(y.columns());
    for_each_element("compute a gate", range, GateForward<T>{x.raw(), y.raw(), y.columns()}, stream);
  });
}

void CudaKernels::silu_gate_backward(const Tensor& x, const Tensor& dy, const Tensor& dx, GpuStream stream) {
  kernels::with_compute_type(x.dtype(), [&]<class T>(T) {
    Range range(dy.size(), GateBackward<T>::pack, dy.raw(), sizeof(T));
    range.also(x.raw(), sizeof(T));
    range.also(dx.raw(), sizeof(T));
    range.in_rows_of(dy.columns());
    for_each_element("compute the gradient of a gate", range, GateBackward<T>{x.raw(), dy.raw(), dx.raw(), dy.columns()},
                     stream);
  });
}

}  // namespace stretto
