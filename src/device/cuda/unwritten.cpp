// What has no CUDA kernel yet.
#include "core/fail.hpp"
#include "device/cuda/cuda_kernels.hpp"

namespace stretto {
namespace {

[[noreturn]] void no_kernel(const char* name) { fail(ErrorCode::unavailable, "{} has no CUDA kernel.", name); }

}  // namespace

void CudaKernels::gemm(const Tensor&, kernels::Transpose, const Tensor&, kernels::Transpose, const Tensor&, bool,
                       GpuStream) {
  no_kernel("gemm");
}
void CudaKernels::attention_forward(const kernels::AttentionShape&, const Tensor&, const Tensor&, const Tensor&, GpuStream) {
  no_kernel("attention_forward");
}
void CudaKernels::attention_backward(const kernels::AttentionShape&, const Tensor&, const Tensor&, const Tensor&,
                                     const Tensor&, const Tensor&, GpuStream) {
  no_kernel("attention_backward");
}

}  // namespace stretto
