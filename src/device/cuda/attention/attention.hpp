#pragma once
#include <cuda_runtime_api.h>

#include "device/gpu_kernels.hpp"

// The two ways to attention on a GPU; kernels.hpp says what is computed. Sums are formed in a fixed order by both.
namespace stretto::attention {

// Kernels of our own, for f64, f32 and bf16, heads of up to 256 elements and sequences of any length, without tensor
// cores. Every tensor has elements. deltas: memory like the log-sum-exp's, used until the stream is through. What CUDA said
// comes back as it is: nvcc cannot compile the library's sentences.
constexpr std::int64_t largest_own_head = 256;
cudaError_t own_forward(const kernels::AttentionShape& shape, const Tensor& qkv, const Tensor& out,
                        const Tensor& log_sum_exp, cudaStream_t stream);
cudaError_t own_backward(const kernels::AttentionShape& shape, const Tensor& qkv, const Tensor& out,
                         const Tensor& log_sum_exp, const Tensor& dout, const Tensor& dqkv, void* deltas,
                         cudaStream_t stream);

// cuDNN's, for bf16 on tensor cores. False, and nothing done, where cuDNN refuses, which is said in the log at level info
// once a shape: head sizes that are no multiple of 8 or too large for the GPU, tensors not aligned to 16 bytes, and
// backward of a single token or of more than 32768.
bool cudnn_forward(const kernels::AttentionShape& shape, const Tensor& qkv, const Tensor& out, const Tensor& log_sum_exp,
                   GpuStream stream);
bool cudnn_backward(const kernels::AttentionShape& shape, const Tensor& qkv, const Tensor& out, const Tensor& log_sum_exp,
                    const Tensor& dout, const Tensor& dqkv, GpuStream stream);

}  // namespace stretto::attention
