// Norms of rows, softmax and embeddings.
#include <utility>

#include "device/cpu/host_kernels.hpp"
#include "device/gpu.hpp"
#include "device/kernels/arguments.hpp"
#include "device/stream/kernel_scope.hpp"

namespace stretto::kernels {

void layer_norm_forward(const Tensor& x, const Tensor& gamma, const Tensor& beta, double epsilon, const Tensor& y,
                        const Tensor& mean, const Tensor& rstd) {
  const char* const kernel = "layer_norm_forward";
  check_holds(kernel, "gamma", gamma, x.dtype(), x.columns());
  check_holds(kernel, "beta", beta, x.dtype(), x.columns());
  check_holds(kernel, "y", y, x.dtype(), x.size());
  check_holds(kernel, "mean", mean, accumulator(x.dtype()), x.rows());
  check_holds(kernel, "rstd", rstd, accumulator(x.dtype()), x.rows());
  const KernelScope scope("layer_norm_forward");
  if (scope.skipped()) return;
  if (on_gpu("layer_norm_forward", x, gamma, beta, y, mean, rstd))
    return gpu().kernels().layer_norm_forward(x, gamma, beta, epsilon, y, mean, rstd, gpu_stream());
  cpu::layer_norm_forward(x, gamma, beta, epsilon, y, mean, rstd);
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
  const KernelScope scope("layer_norm_backward");
  if (scope.skipped()) return;
  if (on_gpu("layer_norm_backward", x, gamma, mean, rstd, dy, dx, dgamma, dbeta))
    return gpu().kernels().layer_norm_backward(x, gamma, mean, rstd, dy, dx, dgamma, dbeta, gpu_stream());
  cpu::layer_norm_backward(x, gamma, mean, rstd, dy, dx, dgamma, dbeta);
}

void rms_norm_forward(const Tensor& x, const Tensor& gamma, double epsilon, const Tensor& y, const Tensor& rstd) {
  const char* const kernel = "rms_norm_forward";
  check_holds(kernel, "gamma", gamma, x.dtype(), x.columns());
  check_holds(kernel, "y", y, x.dtype(), x.size());
  check_columns(kernel, "y", y, x.columns());
  check_holds(kernel, "rstd", rstd, accumulator(x.dtype()), x.rows());
  const KernelScope scope("rms_norm_forward");
  if (scope.skipped()) return;
  if (on_gpu("rms_norm_forward", x, gamma, y, rstd))
    return gpu().kernels().rms_norm_forward({x}, 1, gamma, epsilon, {y}, rstd, gpu_stream());
  cpu::rms_norm_forward({x}, 1, gamma, epsilon, {y}, rstd);
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
  const KernelScope scope("rms_norm_backward");
  if (scope.skipped()) return;
  if (on_gpu("rms_norm_backward", x, gamma, rstd, dy, dx, dgamma))
    return gpu().kernels().rms_norm_backward({x}, 1, gamma, rstd, {dy}, {dx}, true, dgamma, gpu_stream());
  cpu::rms_norm_backward({x}, 1, gamma, rstd, {dy}, {dx}, true, dgamma);
}

void softmax(const Tensor& x, const Tensor& y) {
  check_holds("softmax", "y", y, x.dtype(), x.size());
  check_columns("softmax", "y", y, x.columns());
  const KernelScope scope("softmax");
  if (scope.skipped()) return;
  if (on_gpu("softmax", x, y)) return gpu().kernels().softmax(x, y, gpu_stream());
  cpu::softmax(x, y);
}

void embedding_forward(const Tensor& tokens, std::int64_t first, const Tensor& table, const Tensor& y) {
  check_holds("embedding_forward", "y", y, table.dtype(), y.size());
  check_columns("embedding_forward", "y", y, table.columns());
  check_holds("embedding_forward", "tokens", tokens, DType::i32, y.rows());
  const KernelScope scope("embedding_forward");
  if (scope.skipped()) return;
  if (on_gpu("embedding_forward", tokens, table, y))
    return gpu().kernels().embedding_forward(tokens, first, table, y, gpu_stream());
  cpu::embedding_forward(tokens, first, table, y);
}

void embedding_backward(const Tensor& tokens, std::int64_t first, const Tensor& dy, const Tensor& dtable) {
  check_gradient("embedding_backward", "dtable", dtable, dy.dtype(), dtable.size());
  check_columns("embedding_backward", "dtable", dtable, dy.columns());
  check_holds("embedding_backward", "tokens", tokens, DType::i32, dy.rows());
  const KernelScope scope("embedding_backward");
  if (scope.skipped()) return;
  if (on_gpu("embedding_backward", tokens, dy, dtable))
    return gpu().kernels().embedding_backward(tokens, first, dy, dtable, gpu_stream());
  cpu::embedding_backward(tokens, first, dy, dtable);
}

}  // namespace stretto::kernels
