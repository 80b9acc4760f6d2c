#include <cstring>

#include "core/fail.hpp"
#include "device/kernels/arguments.hpp"
#include "device/kernels/run_kernel.hpp"

namespace stretto::kernels {

void convert(const Tensor& from, const Tensor& out) {
  check_holds("convert", "out", out, out.dtype(), from.size());
  const KernelScope scope("convert");
  if (scope.skipped() || (from.raw() == out.raw() && from.dtype() == out.dtype())) return;
  if (on_gpu("convert", from, out))
    return gpu().kernels().convert(from.dtype(), from.raw(), out.dtype(), out.raw(), from.size(), gpu_stream());
  cpu::convert(from.dtype(), from.raw(), out.dtype(), out.raw(), from.size());
}

void add(const Tensor& a, const Tensor& b, const Tensor& out) {
  check_holds("add", "b", b, a.dtype(), a.size());
  check_holds("add", "out", out, a.dtype(), a.size());
  const KernelScope scope("add");
  if (scope.skipped()) return;
  if (on_gpu("add", a, b, out)) return gpu().kernels().add(a, b, out, gpu_stream());
  reduce(ReduceOp::sum, a.dtype(), a.raw(), b.raw(), out.raw(), a.size());
}

void scale(const Tensor& x, double factor) {
  check_compute_type(x.dtype());
  const KernelScope scope("scale");
  if (scope.skipped()) return;
  if (on_gpu("scale", x)) return gpu().kernels().scale(x, factor, gpu_stream());
  cpu::multiply(x.dtype(), x.raw(), x.raw(), x.size(), factor);
}

void copy_columns(const Tensor& from, std::int64_t from_column, const Tensor& out, std::int64_t out_column,
                  std::int64_t columns) {
  check_holds("copy_columns", "out", out, from.dtype(), from.rows() * out.columns());
  require(columns >= 0 && from_column >= 0 && from_column + columns <= from.columns() && out_column >= 0 &&
              out_column + columns <= out.columns(),
          "copy_columns: {} columns from {} on of {} do not go to those from {} on of {}.", columns, from_column,
          from.columns(), out_column, out.columns());
  const KernelScope scope("copy");
  if (scope.skipped() || columns == 0 || from.rows() == 0) return;
  const Tensor first = from.view(from_column, {1}), place = out.view(out_column, {1});
  const std::size_t bytes = static_cast<std::size_t>(columns) * size_of(from.dtype());
  const std::size_t from_step = static_cast<std::size_t>(from.columns()) * size_of(from.dtype());
  const std::size_t out_step = static_cast<std::size_t>(out.columns()) * size_of(from.dtype());
  if (on_gpu("copy_columns", from, out)) {
    return gpu().copy_rows(place.raw(), out_step, first.raw(), from_step, bytes, from.rows(), gpu_stream());
  }
  for (std::int64_t row = 0; row < from.rows(); ++row) {
    const auto i = static_cast<std::size_t>(row);
    std::memcpy(static_cast<std::byte*>(place.raw()) + i * out_step,
                static_cast<const std::byte*>(first.raw()) + i * from_step, bytes);
  }
}

void dropout(const Dropout& options, const Tensor& x, const Tensor& draws, const Tensor& out) {
  check_compute_type(x.dtype());
  require(options.probability >= 0 && options.probability < 1,
          "dropout was given a probability of {}; give 0 or more, and less than 1.", options.probability);
  check_holds("dropout", "draws", draws, DType::i64, x.rows());
  check_holds("dropout", "out", out, x.dtype(), x.size());
  run_kernel("dropout", cpu::dropout, &GpuKernels::dropout, options, x, draws, out);
}

double sum_of_squares(const Tensor& x) { return sums_of_squares({x}).front(); }

std::vector<double> sums_of_squares(const std::vector<Tensor>& xs) {
  std::vector<double> sums(xs.size(), 0);
  const KernelScope scope("sum_of_squares");
  if (scope.skipped() || xs.empty()) return sums;
  bool there = false;
  for (const Tensor& x : xs) there = on_gpu("sums_of_squares", xs.front(), x);
  if (there) {
    const Tensor results({static_cast<std::int64_t>(xs.size())}, DType::f64, Device::cuda);
    gpu().kernels().sums_of_squares(xs, results.data<double>(), gpu_stream());
    results.copy_to_host(sums.data());
  } else {
    for (std::size_t i = 0; i < xs.size(); ++i) sums[i] = cpu::sum_of_squares(xs[i]);
  }
  return sums;
}

void gelu_forward(const Tensor& x, const Tensor& y) {
  check_holds("gelu_forward", "y", y, x.dtype(), x.size());
  run_kernel("gelu_forward", cpu::gelu_forward, &GpuKernels::gelu_forward, x, y);
}

void gelu_backward(const Tensor& x, const Tensor& dy, const Tensor& dx) {
  check_holds("gelu_backward", "dy", dy, x.dtype(), x.size());
  check_holds("gelu_backward", "dx", dx, x.dtype(), x.size());
  run_kernel("gelu_backward", cpu::gelu_backward, &GpuKernels::gelu_backward, x, dy, dx);
}

void add_bias(const Tensor& x, const Tensor& bias) {
  check_holds("add_bias", "bias", bias, x.dtype(), x.columns());
  run_kernel("add_bias", cpu::add_bias, &GpuKernels::add_bias, x, bias);
}

void add_bias_gelu(const Tensor& x, const Tensor& bias, const Tensor& y) {
  check_holds("add_bias_gelu", "bias", bias, x.dtype(), x.columns());
  check_holds("add_bias_gelu", "y", y, x.dtype(), x.size());
  run_kernel("add_bias_gelu", cpu::add_bias_gelu, &GpuKernels::add_bias_gelu, x, bias, y);
}

void add_column_sums(const Tensor& x, const Tensor& sums) {
  check_gradient("add_column_sums", "sums", sums, x.dtype(), x.columns());
  run_kernel("add_column_sums", cpu::add_column_sums, &GpuKernels::add_column_sums, x, sums);
}

}  // namespace stretto::kernels
