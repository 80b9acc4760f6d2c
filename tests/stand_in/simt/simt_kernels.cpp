// The kernels that are not our CUDA source (products are cuBLASLt's on a GPU and the host's here), and the attributes that
// CUDA keeps for each kernel.
#include "stand_in/simt/cuda_words.hpp"
//
#include <map>
#include <mutex>

#include "device/cuda/cuda_kernels.hpp"

namespace stretto {
namespace {

std::mutex mutex;
std::map<const void*, int> allowed_bytes;

}  // namespace

int simt::allowed_bytes_of(const void* kernel) {
  const std::lock_guard lock(mutex);
  const auto found = allowed_bytes.find(kernel);
  return found == allowed_bytes.end() ? dynamic_bytes_without_asking : found->second;
}

void simt::allow_bytes(const void* kernel, int bytes) {
  const std::lock_guard lock(mutex);
  allowed_bytes[kernel] = bytes;
}

void SimtKernels::gemm(const Tensor& a, kernels::Transpose transpose_a, const Tensor& b, kernels::Transpose transpose_b,
                       const Tensor& c, bool accumulate, GpuStream stream) {
  HostKernels(static_cast<HostGpu&>(gpu())).gemm(a, transpose_a, b, transpose_b, c, accumulate, stream);
}

void SimtKernels::linear(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& y, GpuStream stream) {
  GpuKernels::linear(x, weight, bias, y, stream);
}

void SimtKernels::linear_gelu(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& before_gelu,
                              const Tensor& y, GpuStream stream) {
  GpuKernels::linear_gelu(x, weight, bias, before_gelu, y, stream);
}

void SimtKernels::linear_add(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& residual,
                             const Tensor& y, GpuStream stream) {
  GpuKernels::linear_add(x, weight, bias, residual, y, stream);
}

void SimtKernels::linear_backward_gelu(const Tensor& dy, const Tensor& weight, const Tensor& before_gelu, const Tensor& dx,
                                       GpuStream stream) {
  GpuKernels::linear_backward_gelu(dy, weight, before_gelu, dx, stream);
}

}  // namespace stretto
