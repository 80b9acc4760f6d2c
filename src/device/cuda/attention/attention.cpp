// The choice between cuDNN's attention, if cuDNN was found and takes the tensors, and the library's own kernels.
#include "device/cuda/attention/attention.hpp"

#include "core/fail.hpp"
#include "device/cuda/cuda_kernels.hpp"
#include "device/cuda/runtime/stream_memory.hpp"

namespace stretto {
namespace {

void check_own(const kernels::AttentionShape& shape) {
  require(shape.head_size <= attention::largest_own_head,
          "Attention of {} elements a head is too much for a GPU: {} at most.", shape.head_size,
          attention::largest_own_head);
  // The largest launch has blocks of 8 warps, with one warp for each token and head.
  require((shape.sequence + 7) / 8 * shape.batch * shape.heads < std::int64_t{1} << 31,
          "Attention over {} sequences of {} tokens with {} heads is too much for one GPU.", shape.batch, shape.sequence,
          shape.heads);
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
  check_own(shape);
  check_cuda(attention::own_forward(shape, qkv, out, log_sum_exp, cuda(stream)), "start attention");
}

void CudaKernels::attention_backward(const kernels::AttentionShape& shape, const Tensor& qkv, const Tensor& out,
                                     const Tensor& log_sum_exp, const Tensor& dout, const Tensor& dqkv, GpuStream stream) {
  if (out.size() == 0) return;
  if (is_narrow(qkv.dtype()) && attention::cudnn_backward(shape, qkv, out, log_sum_exp, dout, dqkv, stream)) return;
  check_own(shape);
  const StreamMemory deltas(log_sum_exp.bytes(), stream);
  check_cuda(attention::own_backward(shape, qkv, out, log_sum_exp, dout, dqkv, deltas.data(), cuda(stream)),
             "start attention's derivative");
}

}  // namespace stretto
