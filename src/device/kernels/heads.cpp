// Norms of heads, and rotary positions.
#include "device/cpu/host_kernels.hpp"
#include "device/gpu.hpp"
#include "device/kernels/arguments.hpp"
#include "device/stream/kernel_scope.hpp"

namespace stretto::kernels {

void head_norm_forward(const TokenHeads& x, std::int64_t heads, const Tensor& gamma, double epsilon, const TokenHeads& y,
                       const Tensor& rstd) {
  const char* const kernel = "head_norm_forward";
  const DType f = gamma.dtype();
  const std::int64_t tokens = x.tensor.rows();
  check_heads(kernel, "x", x, f, tokens, heads, gamma.size());
  check_heads(kernel, "y", y, f, tokens, heads, gamma.size());
  check_holds(kernel, "rstd", rstd, accumulator(f), tokens * heads);
  const KernelScope scope("head_norm_forward");
  if (scope.skipped()) return;
  if (on_gpu("head_norm_forward", x.tensor, gamma, y.tensor, rstd))
    return gpu().kernels().rms_norm_forward(x, heads, gamma, epsilon, y, rstd, gpu_stream());
  cpu::rms_norm_forward(x, heads, gamma, epsilon, y, rstd);
}

void head_norm_backward(const TokenHeads& x, std::int64_t heads, const Tensor& gamma, const Tensor& rstd,
                        const TokenHeads& dy, const TokenHeads& dx, const Tensor& dgamma) {
  const char* const kernel = "head_norm_backward";
  const DType f = gamma.dtype();
  const std::int64_t tokens = x.tensor.rows();
  check_heads(kernel, "x", x, f, tokens, heads, gamma.size());
  check_heads(kernel, "dy", dy, f, tokens, heads, gamma.size());
  check_heads(kernel, "dx", dx, f, tokens, heads, gamma.size());
  check_holds(kernel, "rstd", rstd, accumulator(f), tokens * heads);
  check_gradient(kernel, "dgamma", dgamma, f, gamma.size());
  const KernelScope scope("head_norm_backward");
  if (scope.skipped()) return;
  if (on_gpu("head_norm_backward", x.tensor, gamma, rstd, dy.tensor, dx.tensor, dgamma))
    return gpu().kernels().rms_norm_backward(x, heads, gamma, rstd, dy, dx, false, dgamma, gpu_stream());
  cpu::rms_norm_backward(x, heads, gamma, rstd, dy, dx, false, dgamma);
}

void rotary(const TokenHeads& x, std::int64_t heads, const Tensor& positions, const Tensor& table, const TokenHeads& out,
            bool inverse) {
  const DType f = x.tensor.dtype();
  const std::int64_t tokens = x.tensor.rows();
  check_compute_type(f);
  check_holds("rotary", "table", table, accumulator(f), table.size());
  require(
      table.shape().size() == 3 && table.shape()[1] == 2,
      "rotary needs a table of shape [positions, 2, half the size of a head], but was given one of {} dimensions with {} "
      "elements.",
      table.shape().size(), table.size());
  check_holds("rotary", "positions", positions, DType::i32, tokens);
  check_heads("rotary", "x", x, f, tokens, heads, 2 * table.columns());
  check_heads("rotary", "out", out, f, tokens, heads, 2 * table.columns());
  const KernelScope scope(inverse ? "rotary_inverse" : "rotary");
  if (scope.skipped()) return;
  if (on_gpu("rotary", x.tensor, positions, table, out.tensor))
    return gpu().kernels().rotary(x, heads, positions, table, out, inverse, gpu_stream());
  cpu::rotary(x, heads, positions, table, out, inverse);
}

}  // namespace stretto::kernels
