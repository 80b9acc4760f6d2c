#include "device/cpu/host_kernels.hpp"
#include "device/gpu.hpp"
#include "device/kernels/arguments.hpp"
#include "device/stream/kernel_scope.hpp"

namespace stretto::kernels {
namespace {

void check_shapes(const AttentionShape& shape, const Tensor& qkv, const Tensor& out, const Tensor& log_sum_exp) {
  const auto [batch, sequence, heads, head_size] = shape;
  require(batch >= 0 && sequence >= 0 && heads >= 0 && head_size >= 1,
          "Attention over {} sequences of {} tokens with {} heads of {} elements makes no sense.", batch, sequence, heads,
          head_size);
  const std::int64_t elements = batch * sequence * heads * head_size;
  require(is_compute_type(qkv.dtype()) && out.dtype() == qkv.dtype() && log_sum_exp.dtype() == accumulator(qkv.dtype()),
          "Attention of {} cannot write {} and a log-sum-exp of {}.", name(qkv.dtype()), name(out.dtype()),
          name(log_sum_exp.dtype()));
  require(qkv.size() == 3 * elements && out.size() == elements && log_sum_exp.size() == batch * heads * sequence,
          "Attention over {} sequences of {} tokens with {} heads of {} elements does not fit qkv, out and "
          "log-sum-exp of {}, {} and {} elements.",
          batch, sequence, heads, head_size, qkv.size(), out.size(), log_sum_exp.size());
}

}  // namespace

void attention_forward(const AttentionShape& shape, const Tensor& qkv, const Tensor& out, const Tensor& log_sum_exp) {
  check_shapes(shape, qkv, out, log_sum_exp);
  const KernelScope scope("attention_forward");
  if (scope.skipped()) return;
  if (on_gpu("attention_forward", qkv, out, log_sum_exp))
    return gpu().kernels().attention_forward(shape, qkv, out, log_sum_exp, gpu_stream());
  cpu::attention_forward(shape, qkv, out, log_sum_exp);
}

void attention_backward(const AttentionShape& shape, const Tensor& qkv, const Tensor& out, const Tensor& log_sum_exp,
                        const Tensor& dout, const Tensor& dqkv) {
  check_shapes(shape, qkv, dout, log_sum_exp);
  check_shapes(shape, dqkv, out, log_sum_exp);
  const KernelScope scope("attention_backward");
  if (scope.skipped()) return;
  if (on_gpu("attention_backward", qkv, out, log_sum_exp, dout, dqkv))
    return gpu().kernels().attention_backward(shape, qkv, out, log_sum_exp, dout, dqkv, gpu_stream());
  cpu::attention_backward(shape, qkv, out, log_sum_exp, dout, dqkv);
}

}  // namespace stretto::kernels
