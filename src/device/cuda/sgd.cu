// One step of stochastic gradient descent in one pass, with the host's order of operations and the same fused operations
// (device/cpu/optimizers/sgd.cpp).
#include "device/cuda/arithmetic.cuh"
#include "device/cuda/cuda_kernels.hpp"
#include "device/cuda/for_each_element.cuh"

namespace stretto {
namespace gpu_code {
namespace {

// T is the type of parameter, G that of its gradient. If T is the accumulator type, parameter and master are the same array.
template <class T, class G, bool has_momentum>
struct Descent {
  using A = Accumulator<T>;
  static constexpr int pack = sizeof(A) == 8 ? 2 : 4;
  static constexpr int together = 1;  // the loads of several arrays are in flight already

  const void* gradient;
  void* master;
  void* b_array;
  void* parameter;
  A rate, momentum, decay, gradient_scale;

  template <int W, int U>
  __device__ void run(std::int64_t i, std::int64_t /*step*/) const {
    static_assert(U == 1);
    const Pack<G, W> g_pack = load<G, W>(gradient, i);
    Pack<A, W> p_pack = load<A, W>(master, i);
    Pack<A, W> b_pack;
    if constexpr (has_momentum) b_pack = load<A, W>(b_array, i);
    Pack<T, W> narrow;
#pragma unroll
    for (int w = 0; w < W; ++w) {
      A b = fused(decay, p_pack.at[w], product(widened<G>(g_pack.at[w]), gradient_scale));
      if constexpr (has_momentum) b = b_pack.at[w] = fused(momentum, b_pack.at[w], b);
      const A p = fused(-rate, b, p_pack.at[w]);
      p_pack.at[w] = p;
      if constexpr (!std::is_same_v<T, A>) narrow.at[w] = rounded<T>(p);
    }
    if constexpr (has_momentum) store<A, W>(b_array, i, b_pack);
    store<A, W>(master, i, p_pack);
    if constexpr (!std::is_same_v<T, A>) store<T, W>(parameter, i, narrow);
  }
};

template <class T, class G, bool has_momentum>
void descend(const kernels::SGDStep& options, const Tensor& gradient, const Tensor& master, const Tensor& b,
             const Tensor& parameter, GpuStream stream) {
  using A = Accumulator<T>;
  using Kernel = Descent<T, G, has_momentum>;
  const Kernel step{gradient.raw(),
                    master.raw(),
                    has_momentum ? b.raw() : nullptr,
                    parameter.raw(),
                    static_cast<A>(options.lr),
                    static_cast<A>(options.momentum),
                    static_cast<A>(options.weight_decay),
                    static_cast<A>(options.gradient_scale)};
  Range range(parameter.size(), Kernel::pack, master.raw(), sizeof(A));
  if constexpr (has_momentum) range.also(b.raw(), sizeof(A));
  range.also(gradient.raw(), sizeof(G));
  range.also(parameter.raw(), sizeof(T));
  for_each_element("take a step of gradient descent", range, step, stream);
}

}  // namespace
}  // namespace gpu_code

using namespace gpu_code;

void CudaKernels::sgd(const kernels::SGDStep& options, const Tensor& gradient, const Tensor& master, const Tensor& b,
                      const Tensor& parameter, GpuStream stream) {
  kernels::with_compute_type(parameter.dtype(), [&]<class T>(T) {
    kernels::with_gradient_type<T>(gradient.dtype(), [&]<class G>(G) {
      (b ? descend<T, G, true> : descend<T, G, false>)(options, gradient, master, b, parameter, stream);
    });
  });
}

}  // namespace stretto
