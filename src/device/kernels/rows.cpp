// Norms of rows and of heads, rotary positions, softmax and embeddings.
#include <utility>

#include "device/kernels/arguments.hpp"
#include "device/kernels/run_kernel.hpp"

namespace stretto::kernels {

void layer_norm_forward(const Tensor& x, const Tensor& gamma, const Tensor& beta, double epsilon, const Tensor& y,
                        const Tensor& mean, const Tensor& rstd) {
  const char* const kernel = "layer_norm_forward";
  check_holds(kernel, "gamma", gamma, x.dtype(), x.columns());
  check_holds(kernel, "beta", beta, x.dtype(), x.columns());
  check_holds(kernel, "y", y, x.dtype(), x.size());
  check_holds(kernel, "mean", mean, accumulator(x.dtype()), x.rows());
  check_holds(kernel, "rstd", rstd, accumulator(x.dtype()), x.rows());
  run_kernel("layer_norm_forward", cpu::layer_norm_forward, &GpuKernels::layer_norm_forward, x, gamma, beta, epsilon, y,
             mean, rstd);
}

void layer_norm_backward(const Tensor& x, const Tensor& gamma, const Tensor& mean, const Tensor& rstd, const Tensor& dy,
                         const Tensor& dx, const Tensor& dgamma, const Tensor& dbeta) {
  const char* const kernel = "layer_norm_backward";
  check_holds(kernel, "gamma", gamma, x.dtype(), x.columns());
  check_holds(kernel, "mean", mean, accumulator(x.dtype()), x.rows());
  check_holds(kernel, "rstd", rstd, accumulator(x.dtype()), x.rows());
  check_holds(kernel, "dy", dy, x.dtype(), x.size());
  check_holds(kernel, "dx", dx, x.dtype(), x.size());
  check_gradient(kernel, "dgamma", dgamma, x.dtype(), x.columns());
  check_holds(kernel, "dbeta", dbeta, dgamma.dtype(), x.columns());
  run_kernel("layer_norm_backward", cpu::layer_norm_backward, &GpuKernels::layer_norm_backward, x, gamma, mean, rstd, dy, dx,
             dgamma, dbeta);
}

void rms_norm_forward(const Tensor& x, const Tensor& gamma, double epsilon, const Tensor& y, const Tensor& rstd) {
  const char* const kernel = "rms_norm_forward";
  check_holds(kernel, "gamma", gamma, x.dtype(), x.columns());
  check_holds(kernel, "y", y, x.dtype(), x.size());
  check_columns(kernel, "y", y, x.columns());
  check_holds(kernel, "rstd", rstd, accumulator(x.dtype()), x.rows());
  run_kernel("rms_norm_forward", cpu::rms_norm_forward, &GpuKernels::rms_norm_forward, {x}, 1, gamma, epsilon, {y}, rstd);
}

void rms_norm_backward(const Tensor& x, const Tensor& gamma, const Tensor& rstd, const Tensor& dy, const Tensor& dx,
                       const Tensor& dgamma) {
  const char* const kernel = "rms_norm_backward";
  check_holds(kernel, "gamma", gamma, x.dtype(), x.columns());
  check_holds(kernel, "rstd", rstd, accumulator(x.dtype()), x.rows());
  for (const auto& [argument, tensor] : {std::pair("dy", dy), std::pair("dx", dx)}) {
    check_holds(kernel, argument, tensor, x.dtype(), x.size());
    check_columns(kernel, argument, tensor, x.columns());
  }
  check_gradient(kernel, "dgamma", dgamma, x.dtype(), x.columns());
  run_kernel("rms_norm_backward", cpu::rms_norm_backward, &GpuKernels::rms_norm_backward, {x}, 1, gamma, rstd, {dy}, {dx},
             true, dgamma);
}

void head_norm_forward(const TokenHeads& x, std::int64_t heads, const Tensor& gamma, double epsilon, const TokenHeads& y,
                       const Tensor& rstd) {
  const char* const kernel = "head_norm_forward";
  const DType f = gamma.dtype();
  const std::int64_t tokens = x.tensor.rows();
  check_heads(kernel, "x", x, f, tokens, heads, gamma.size());
  check_heads(kernel, "y", y, f, tokens, heads, gamma.size());
  check_holds(kernel, "rstd", rstd, accumulator(f), tokens * heads);
  run_kernel("head_norm_forward", cpu::rms_norm_forward, &GpuKernels::rms_norm_forward, x, heads, gamma, epsilon, y, rstd);
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
  run_kernel("head_norm_backward", cpu::rms_norm_backward, &GpuKernels::rms_norm_backward, x, heads, gamma, rstd, dy, dx,
             false, dgamma);
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
  run_kernel(inverse ? "rotary_inverse" : "rotary", cpu::rotary, &GpuKernels::rotary, x, heads, positions, table, out,
             inverse);
}

void softmax(const Tensor& x, const Tensor& y) {
  check_holds("softmax", "y", y, x.dtype(), x.size());
  check_columns("softmax", "y", y, x.columns());
  run_kernel("softmax", cpu::softmax, &GpuKernels::softmax, x, y);
}

void embedding_forward(const Tensor& tokens, std::int64_t first, const Tensor& table, const Tensor& y) {
  check_holds("embedding_forward", "y", y, table.dtype(), y.size());
  check_columns("embedding_forward", "y", y, table.columns());
  check_holds("embedding_forward", "tokens", tokens, DType::i32, y.rows());
  run_kernel("embedding_forward", cpu::embedding_forward, &GpuKernels::embedding_forward, tokens, first, table, y);
}

void embedding_backward(const Tensor& tokens, std::int64_t first, const Tensor& dy, const Tensor& dtable) {
  check_gradient("embedding_backward", "dtable", dtable, dy.dtype(), dtable.size());
  check_columns("embedding_backward", "dtable", dtable, dy.columns());
  check_holds("embedding_backward", "tokens", tokens, DType::i32, dy.rows());
  run_kernel("embedding_backward", cpu::embedding_backward, &GpuKernels::embedding_backward, tokens, first, dy, dtable);
}

}  // namespace stretto::kernels
