// One step of the optimizer in one pass, with the host's order of operations and the same fused operations
// (device/cpu/optimizers/adamw.cpp).
#include <cmath>

#include "device/cuda/arithmetic.cuh"
#include "device/cuda/cuda_kernels.hpp"
#include "device/cuda/for_each_element.cuh"

namespace stretto {
namespace gpu_code {
namespace {

// T is the type of parameter, G that of its gradient. If T is the accumulator type, parameter and master are the same array.
template <class T, class G>
struct Step {
  using A = Accumulator<T>;
  static constexpr int pack = sizeof(A) == 8 ? 2 : 4;
  static constexpr int together = 1;  // the loads of four arrays are in flight already

  const void* gradient;
  void* master;
  void* m_array;
  void* v_array;
  void* parameter;
  A decay, beta1, beta2, rest1, rest2, rate, correction2, epsilon, gradient_scale;

  template <int W, int U>
  __device__ void run(std::int64_t i, std::int64_t /*step*/) const {
    static_assert(U == 1);
    const Pack<G, W> g_pack = load<G, W>(gradient, i);
    Pack<A, W> p_pack = load<A, W>(master, i);
    Pack<A, W> m_pack = load<A, W>(m_array, i);
    Pack<A, W> v_pack = load<A, W>(v_array, i);
    Pack<T, W> narrow;
#pragma unroll
    for (int w = 0; w < W; ++w) {
      const A g = product(widened<G>(g_pack.at[w]), gradient_scale);
      A p = p_pack.at[w];
      p = fused(-decay, p, p);
      const A m = fused(beta1, m_pack.at[w], product(rest1, g));
      const A v = fused(beta2, v_pack.at[w], product(rest2, product(g, g)));
      const A deviation = sqrt(product(v, correction2)) + epsilon;
      p = fused(-rate, m / deviation, p);
      m_pack.at[w] = m;
      v_pack.at[w] = v;
      p_pack.at[w] = p;
      if constexpr (!std::is_same_v<T, A>) narrow.at[w] = rounded<T>(p);
    }
    store<A, W>(m_array, i, m_pack);
    store<A, W>(v_array, i, v_pack);
    store<A, W>(master, i, p_pack);
    if constexpr (!std::is_same_v<T, A>) store<T, W>(parameter, i, narrow);
  }
};

}  // namespace
}  // namespace gpu_code

using namespace gpu_code;

void CudaKernels::adamw(const kernels::AdamWStep& options, const Tensor& gradient, const Tensor& master, const Tensor& m,
                        const Tensor& v, const Tensor& parameter, GpuStream stream) {
  kernels::with_compute_type(parameter.dtype(), [&]<class T>(T) {
    using A = Accumulator<T>;
    const auto steps = static_cast<double>(options.step);
    kernels::with_gradient_type<T>(gradient.dtype(), [&]<class G>(G) {
      const Step<T, G> step{gradient.raw(),
                            master.raw(),
                            m.raw(),
                            v.raw(),
                            parameter.raw(),
                            static_cast<A>(options.lr * options.weight_decay),
                            static_cast<A>(options.beta1),
                            static_cast<A>(options.beta2),
                            static_cast<A>(1 - options.beta1),
                            static_cast<A>(1 - options.beta2),
                            static_cast<A>(options.lr / (1 - std::pow(options.beta1, steps))),
                            static_cast<A>(1 / (1 - std::pow(options.beta2, steps))),
                            static_cast<A>(options.epsilon),
                            static_cast<A>(options.gradient_scale)};
      Range range(parameter.size(), Step<T, G>::pack, master.raw(), sizeof(A));
      for (const Tensor* const tensor : {&m, &v}) range.also(tensor->raw(), sizeof(A));
      range.also(gradient.raw(), sizeof(G));
      range.also(parameter.raw(), sizeof(T));
      for_each_element("take a step of AdamW", range, step, stream);
    });
  });
}

}  // namespace stretto
