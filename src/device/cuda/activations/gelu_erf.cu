// GELU by the error function, and its derivative Phi(x) + x Phi'(x).
#include "device/cuda/activations/activation.cuh"
#include "device/cuda/cuda_kernels.hpp"

namespace stretto {
namespace gpu_code {
namespace {

constexpr double root_half = 0.70710678118654752;
constexpr double root_2pi_inverse = 0.39894228040143268;

__device__ inline float complementary_error(float x) { return erfcf(x); }
__device__ inline double complementary_error(double x) { return erfc(x); }

template <class A>
__device__ inline A phi(A x) {
  return product(A{0.5}, complementary_error(product(x, static_cast<A>(-root_half))));
}

struct GeluErf {
  template <class T, class A = Accumulator<T>>
  __device__ static A value(A x) {
    return product(x, phi(x));
  }
  template <class T, class A = Accumulator<T>>
  __device__ static A slope(A x) {
    constexpr A bound = sizeof(A) == 4 ? 13 : 37;  // beyond it the density vanishes
    A bounded = x;                                 // NaN stays NaN
    if (x > bound) bounded = bound;
    if (x < -bound) bounded = -bound;
    const A density =
        product(exponential_of<T>(product(product(bounded, bounded), A{-0.5})), static_cast<A>(root_2pi_inverse));
    return fused(bounded, density, phi(bounded));
  }
};

}  // namespace
}  // namespace gpu_code

using namespace gpu_code;

void CudaKernels::gelu_erf_forward(const Tensor& x, const Tensor& y, GpuStream stream) {
  activate<GeluErf>("compute GELU", x, y, stream);
}

void CudaKernels::gelu_erf_backward(const Tensor& x, const Tensor& dy, const Tensor& dx, GpuStream stream) {
  activate_backward<GeluErf>("compute the gradient of GELU", x, dy, dx, stream);
}

}  // namespace stretto
