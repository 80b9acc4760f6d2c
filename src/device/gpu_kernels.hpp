#pragma once
#include <vector>

#include "stretto/kernels.hpp"
#include "stretto/stored_format.hpp"

namespace stretto {

using GpuStream = struct GpuStreamHandle*;

// The kernels of stretto/kernels.hpp on a GPU, behind the checks of device/kernels/: each puts its work into the stream and
// returns. Results are those that stretto/kernels.hpp describes; sums over rows may be formed in another order than on the
// host, but the order is the same at each call.
class GpuKernels {
 public:
  virtual ~GpuKernels() = default;

#define STRETTO_GPU_KERNEL(name, ...) virtual void name(__VA_ARGS__, GpuStream stream) = 0
#include "device/gpu_kernel_list.hpp"
#undef STRETTO_GPU_KERNEL

  // gemm and the functions below get no empty matrices. A GPU that cannot add the bias within the product adds it
  // afterwards.
  virtual void linear(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& y, GpuStream stream) {
    gemm(x, kernels::Transpose::no, weight, kernels::Transpose::yes, y, false, stream);
    add_bias(y, bias, stream);
  }
  virtual void linear_gelu(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& before_gelu,
                           const Tensor& y, GpuStream stream) {
    gemm(x, kernels::Transpose::no, weight, kernels::Transpose::yes, before_gelu, false, stream);
    add_bias_gelu(before_gelu, bias, y, stream);
  }
  virtual void linear_add(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& residual, const Tensor& y,
                          GpuStream stream) {
    linear(x, weight, bias, y, stream);
    const void* const both[] = {residual.raw(), y.raw()};
    reduce_all(ReduceOp::sum, y.dtype(), both, 2, y.raw(), y.size(), 1, stream);
  }
  virtual void linear_backward_gelu(const Tensor& dy, const Tensor& weight, const Tensor& before_gelu, const Tensor& dx,
                                    GpuStream stream) {
    gemm(dy, kernels::Transpose::no, weight, kernels::Transpose::no, dx, false, stream);
    gelu_backward(before_gelu, dx, dx, stream);
  }
};

}  // namespace stretto
