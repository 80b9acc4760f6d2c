#include <fmt/ranges.h>

#include <string>

#include "device/cpu/host_kernels.hpp"
#include "device/gpu.hpp"
#include "device/kernels/arguments.hpp"
#include "device/stream/kernel_scope.hpp"

namespace stretto::kernels {
namespace {

struct Extents {
  std::int64_t rows, columns;
};
Extents extents(const Tensor& x, Transpose transpose) {
  std::int64_t rows = 1;  // Tensor::rows() cannot count rows without columns
  for (std::size_t i = 0; i + 1 < x.shape().size(); ++i) rows *= x.shape()[i];
  return transpose == Transpose::yes ? Extents{x.columns(), rows} : Extents{rows, x.columns()};
}

std::string described(const Tensor& x, Transpose transpose) {
  return fmt::format("[{}]{}", fmt::join(x.shape(), ", "), transpose == Transpose::yes ? " transposed" : "");
}

void check_product(const char* kernel, const Tensor& a, Transpose transpose_a, const Tensor& b, Transpose transpose_b,
                   const Tensor& c) {
  check_there(kernel, "its first factor", a);
  check_there(kernel, "its second factor", b);
  check_there(kernel, "its result", c);
  const Extents of_a = extents(a, transpose_a);
  const Extents of_b = extents(b, transpose_b);
  const Extents of_c = extents(c, Transpose::no);
  require(of_a.columns == of_b.rows && of_a.rows == of_c.rows && of_b.columns == of_c.columns,
          "{} cannot make a matrix of shape {} from those of shapes {} and {}.", kernel, described(c, Transpose::no),
          described(a, transpose_a), described(b, transpose_b));
  require(a.dtype() == b.dtype() && is_compute_type(a.dtype()) &&
              (c.dtype() == a.dtype() || c.dtype() == accumulator(a.dtype())),
          "{} cannot multiply {} by {} into {}.", kernel, name(a.dtype()), name(b.dtype()), name(c.dtype()));
}

void check_linear(const char* kernel, const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& y) {
  check_product(kernel, x, Transpose::no, weight, Transpose::yes, y);
  check_holds(kernel, "y", y, x.dtype(), y.size());
  if (bias) check_holds(kernel, "bias", bias, x.dtype(), y.columns());
}

void check_apart(const char* kernel, const char* one_name, const Tensor& one, const char* other_name, const Tensor& other) {
  const auto begin = [](const Tensor& tensor) { return reinterpret_cast<std::uintptr_t>(tensor.raw()); };
  require(begin(one) + one.bytes() <= begin(other) || begin(other) + other.bytes() <= begin(one),
          "{} got {} and {} in the same memory; give each its own.", kernel, one_name, other_name);
}

// Counts those of a product whose inner extent is `inner`; without a first factor there are none.
double operations(const Tensor& factor, const Tensor& result, std::int64_t inner) {
  return factor.size() == 0 ? 0 : 2.0 * static_cast<double>(result.size()) * static_cast<double>(inner);
}

}  // namespace

void gemm(const Tensor& a, Transpose transpose_a, const Tensor& b, Transpose transpose_b, const Tensor& c, bool accumulate) {
  check_product("gemm", a, transpose_a, b, transpose_b, c);
  const KernelScope scope("gemm", operations(a, c, extents(a, transpose_a).columns));
  if (c.size() == 0 || scope.skipped()) return;
  if (a.size() == 0) {  // an empty sum
    if (!accumulate) c.zero();
    return;
  }
  if (on_gpu("gemm", a, b, c)) return gpu().kernels().gemm(a, transpose_a, b, transpose_b, c, accumulate, gpu_stream());
  cpu::gemm(a, transpose_a, b, transpose_b, c, accumulate);
}

void linear(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& y, const Epilogue& epilogue) {
  const Tensor& activated = epilogue.activated;
  check_linear("linear", x, weight, bias, y);
  const bool fused = bias && y.size() > 0 && x.columns() > 0 && on_gpu("linear", x, weight, bias, y);
  if (fused && activated && epilogue.activation == Activation::gelu_tanh && on_gpu("linear", y, activated)) {
    check_holds("linear", "activated", activated, x.dtype(), y.size());
    const KernelScope scope("linear_gelu", operations(x, y, x.columns()));
    if (!scope.skipped()) gpu().kernels().linear_gelu(x, weight, bias, y, activated, gpu_stream());
    return;
  }
  if (fused && !activated) {
    const KernelScope scope("linear", operations(x, y, x.columns()));
    if (!scope.skipped()) gpu().kernels().linear(x, weight, bias, y, gpu_stream());
    return;
  }
  gemm(x, Transpose::no, weight, Transpose::yes, y);
  finish_linear(y, bias, epilogue);
}

void linear_add(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& residual, const Tensor& y) {
  check_linear("linear_add", x, weight, bias, y);
  check_holds("linear_add", "residual", residual, y.dtype(), y.size());
  check_apart("linear_add", "residual", residual, "y", y);
  if (bias && on_gpu("linear_add", x, weight, bias, residual, y) && y.size() > 0 && x.columns() > 0) {
    const KernelScope scope("linear_add", operations(x, y, x.columns()));
    if (!scope.skipped()) gpu().kernels().linear_add(x, weight, bias, residual, y, gpu_stream());
    return;
  }
  linear(x, weight, bias, y);
  add(residual, y, y);
}

void linear_backward(const Tensor& dy, const Tensor& weight, const Tensor& dx, const BackwardEpilogue& epilogue) {
  const auto& [activation, before] = epilogue;
  if (!before) return gemm(dy, Transpose::no, weight, Transpose::no, dx);
  check_holds("linear_backward", "dx", dx, dy.dtype(), dx.size());
  check_holds("linear_backward", "before", before, dy.dtype(), dx.size());
  check_apart("linear_backward", "before", before, "dx", dx);
  if (products_of(activation) > 1) {
    check_there("linear_backward", "weight", weight);
    const Tensor product({dy.rows(), weight.columns()}, dy.dtype(), dy.device());
    gemm(dy, Transpose::no, weight, Transpose::no, product);
    return finish_linear_backward(product, dx, epilogue);
  }
  check_product("linear_backward", dy, Transpose::no, weight, Transpose::no, dx);
  if (activation == Activation::gelu_tanh && on_gpu("linear_backward", dy, weight, before, dx) && dx.size() > 0 &&
      dy.columns() > 0) {
    const KernelScope scope("linear_backward_gelu", operations(dy, dx, dy.columns()));
    if (!scope.skipped()) gpu().kernels().linear_backward_gelu(dy, weight, before, dx, gpu_stream());
    return;
  }
  gemm(dy, Transpose::no, weight, Transpose::no, dx);
  finish_linear_backward(dx, dx, epilogue);
}

}  // namespace stretto::kernels
