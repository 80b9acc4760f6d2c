#pragma once
#include "device/gpu_kernels.hpp"

namespace stretto {

// The kernels in CUDA, one .cu file for each family; the host's kernels of a family are in the file of the same name in
// device/cpu/.
class CudaKernels final : public GpuKernels {
 public:
#define STRETTO_GPU_KERNEL(name, ...) void name(__VA_ARGS__, GpuStream stream) override
#include "device/gpu_kernel_list.hpp"
#undef STRETTO_GPU_KERNEL

  void linear(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& y, GpuStream stream) override;
  void linear_gelu(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& before_gelu, const Tensor& y,
                   GpuStream stream) override;
  void linear_add(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& residual, const Tensor& y,
                  GpuStream stream) override;
  void linear_backward_gelu(const Tensor& dy, const Tensor& weight, const Tensor& before_gelu, const Tensor& dx,
                            GpuStream stream) override;
};

}  // namespace stretto
