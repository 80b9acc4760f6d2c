#pragma once
#include <cuda_runtime_api.h>

#include "device/gpu_kernels.hpp"

// The two implementations of attention on a GPU; stretto/kernels.hpp says what they compute.
namespace stretto::attention {

// The library's own kernels: for f64, f32, bf16 and f16, heads of up to 256 elements and sequences of any length, without
// tensor cores, with sums in a fixed order. deltas: memory of the size of the log-sum-exp, in use until the stream has
// passed the kernels. CUDA's error is returned, since nvcc cannot compile the library's sentences.
constexpr std::int64_t largest_own_head = 256;
struct BlockForward {
  const kernels::TokenHeads &q, &k, &v, &out;
  const Tensor& log_sum_exp;
  bool merge;
};
cudaError_t own_forward(const kernels::AttentionBlock& block, const BlockForward& given, cudaStream_t stream);
struct BlockBackward {
  const kernels::TokenHeads &q, &k, &v, &out;
  const Tensor& log_sum_exp;
  const kernels::TokenHeads &dout, &dq, &dk, &dv;
  kernels::AttentionSums sums;
};
cudaError_t own_backward(const kernels::AttentionBlock& block, const BlockBackward& given, void* deltas,
                         cudaStream_t stream);

// cuDNN's kernels: for bf16 and f16, on tensor cores; sums of backward are in a fixed order with STRETTO_DETERMINISTIC=1
// only. They return false, and do nothing, if cuDNN refuses, which is logged once for each shape at level info: head sizes
// that are not multiples of 8 or too large for the GPU, tensors not aligned to 16 bytes, and backward of a single token or,
// in a fixed order, of more than 32768.
bool cudnn_forward(const kernels::AttentionShape& shape, const Tensor& qkv, const Tensor& out, const Tensor& log_sum_exp,
                   GpuStream stream);
bool cudnn_backward(const kernels::AttentionShape& shape, const Tensor& qkv, const Tensor& out, const Tensor& log_sum_exp,
                    const Tensor& dout, const Tensor& dqkv, GpuStream stream);

}  // namespace stretto::attention
