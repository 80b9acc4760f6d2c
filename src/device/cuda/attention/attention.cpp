// The choice between cuDNN's attention, if cuDNN was found and takes the tensors, and the library's own kernels.
#include "device/cuda/attention/attention.hpp"

#include <algorithm>

#include "core/fail.hpp"
#include "device/cuda/cuda_kernels.hpp"
#include "device/cuda/runtime/stream_memory.hpp"
#include "device/kernels/attention_block.hpp"

namespace stretto {

using kernels::block_of;
using kernels::heads_of;
using kernels::TokenHeads;

namespace {

void check_own(const kernels::AttentionBlock& block) {
  require(block.head_size <= attention::largest_own_head,
          "Attention of {} elements a head is too much for a GPU: {} at most.", block.head_size,
          attention::largest_own_head);
  // The largest launch has blocks of 8 warps, with one warp for each token and head.
  require((std::max(block.queries, block.keys) + 7) / 8 * block.batch * block.heads < std::int64_t{1} << 31,
          "Attention of {} queries to {} keys in {} sequences with {} heads is too much for one GPU.", block.queries,
          block.keys, block.batch, block.heads);
}

}  // namespace

#ifndef STRETTO_HAVE_CUDNN
namespace attention {

bool cudnn_forward(const kernels::AttentionShape&, const Tensor&, const Tensor&, const Tensor&, GpuStream) { return false; }
bool cudnn_backward(const kernels::AttentionShape&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                    const Tensor&, GpuStream) {
  return false;
}

}  // namespace attention
#endif

void CudaKernels::attention_forward(const kernels::AttentionShape& shape, const Tensor& qkv, const Tensor& out,
                                    const Tensor& log_sum_exp, GpuStream stream) {
  if (out.size() == 0) return;
  if (is_narrow(qkv.dtype()) && attention::cudnn_forward(shape, qkv, out, log_sum_exp, stream)) return;
  attention_block_forward(block_of(shape), heads_of(shape, qkv, 0), heads_of(shape, qkv, 1), heads_of(shape, qkv, 2),
                          heads_of(shape, out, 0, 1), log_sum_exp, false, stream);
}

void CudaKernels::attention_backward(const kernels::AttentionShape& shape, const Tensor& qkv, const Tensor& out,
                                     const Tensor& log_sum_exp, const Tensor& dout, const Tensor& dqkv, GpuStream stream) {
  if (out.size() == 0) return;
  if (is_narrow(qkv.dtype()) && attention::cudnn_backward(shape, qkv, out, log_sum_exp, dout, dqkv, stream)) return;
  attention_block_backward(block_of(shape), heads_of(shape, qkv, 0), heads_of(shape, qkv, 1), heads_of(shape, qkv, 2),
                           heads_of(shape, out, 0, 1), log_sum_exp, heads_of(shape, dout, 0, 1), heads_of(shape, dqkv, 0),
                           heads_of(shape, dqkv, 1), heads_of(shape, dqkv, 2), {}, stream);
}

void CudaKernels::attention_block_forward(const kernels::AttentionBlock& block, const TokenHeads& q, const TokenHeads& k,
                                          const TokenHeads& v, const TokenHeads& out, const Tensor& log_sum_exp, bool merge,
                                          GpuStream stream) {
  check_own(block);
  check_cuda(attention::own_forward(block, {q, k, v, out, log_sum_exp, merge}, cuda(stream)), "start attention");
}

void CudaKernels::attention_block_backward(const kernels::AttentionBlock& block, const TokenHeads& q, const TokenHeads& k,
                                           const TokenHeads& v, const TokenHeads& out, const Tensor& log_sum_exp,
                                           const TokenHeads& dout, const TokenHeads& dq, const TokenHeads& dk,
                                           const TokenHeads& dv, const kernels::AttentionSums& sums, GpuStream stream) {
  check_own(block);
  const StreamMemory deltas(log_sum_exp.bytes(), stream);
  check_cuda(
      attention::own_backward(block, {q, k, v, out, log_sum_exp, dout, dq, dk, dv, sums}, deltas.data(), cuda(stream)),
      "start attention's derivative");
}

}  // namespace stretto
