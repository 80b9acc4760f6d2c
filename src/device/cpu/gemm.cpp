#include <cblas.h>
#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <array>
#include <dnnl.hpp>
#include <limits>
#include <string>

#include "core/fail.hpp"
#include "core/setting_values.hpp"
#include "device/cpu/arguments.hpp"
#include "device/cpu/cpu_level.hpp"
#include "device/cpu/matmul_primitive.hpp"
#include "device/gpu.hpp"
#include "device/stream/kernel_scope.hpp"
#include "stretto/kernels.hpp"

// Which library multiplies what was chosen by measuring the products of GPT-2-like layers.
namespace stretto::kernels {
namespace {

int compute_threads() {
  static const int threads = std::max(1, static_cast<int>(number_setting("STRETTO_COMPUTE_THREADS")));
  return threads;
}

// OpenMP keeps the number of threads per calling thread: oneDNN gets ours, the caller keeps its own.
class OpenMpThreads {
 public:
  OpenMpThreads() { omp_set_num_threads(compute_threads()); }
  ~OpenMpThreads() { omp_set_num_threads(before_); }
  OpenMpThreads(const OpenMpThreads&) = delete;
  OpenMpThreads& operator=(const OpenMpThreads&) = delete;

 private:
  int before_ = omp_get_max_threads();
};

void product_f64(const Product& p, const double* a, const double* b, double* c) {
  [[maybe_unused]] static const bool once = (openblas_set_num_threads(compute_threads()), true);  // of the whole process
  require(std::max({p.m, p.n, p.k}) <= std::numeric_limits<blasint>::max(), "f64 matrices of {} x {} x {} are too large.",
          p.m, p.n, p.k);
  const auto transposed = [](bool yes) { return yes ? CblasTrans : CblasNoTrans; };
  const auto [m, n, k] = std::array{static_cast<blasint>(p.m), static_cast<blasint>(p.n), static_cast<blasint>(p.k)};
  cblas_dgemm(CblasRowMajor, transposed(p.transpose_a), transposed(p.transpose_b), m, n, k, 1, a, p.transpose_a ? m : k, b,
              p.transpose_b ? k : n, p.accumulate ? 1 : 0, c, n);
}

// dnnl_sgemm is the fastest except where little is computed from much: there the primitive wins by a tenth.
bool is_small(const Product& p) { return !p.transpose_a && p.n < 512 && p.k < 512; }

void product_f32(const Product& p, const float* a, const float* b, float* c) {
  const OpenMpThreads threads;
  if (is_small(p)) return matmul_primitive(p, DType::f32, a, b, DType::f32, c);
  // A transposed a is read down its columns; in slices of k it stays in the cache (up to a seventh faster).
  const std::int64_t slice = p.transpose_a ? 192 : p.k;
  const std::int64_t row_a = p.transpose_a ? p.m : p.k;
  const std::int64_t row_b = p.transpose_b ? p.k : p.n;
  for (std::int64_t k = 0; k < p.k; k += slice) {
    const bool accumulate = p.accumulate || k > 0;
    const dnnl_status_t status = dnnl_sgemm(p.transpose_a ? 'T' : 'N', p.transpose_b ? 'T' : 'N', p.m, p.n,
                                            std::min(slice, p.k - k), 1, a + k * (p.transpose_a ? row_a : 1), row_a,
                                            b + k * (p.transpose_b ? 1 : row_b), row_b, accumulate ? 1 : 0, c, p.n);
    ensure(status == dnnl_success, "dnnl_sgemm failed with status {}.", static_cast<int>(status));
  }
}

Tensor widened(const Tensor& x) {
  Tensor wide(x.shape(), DType::f32);
  convert(x, wide);
  return wide;
}

// Without bf16 instructions, a and b are widened to f32 and the product is rounded once. Below AVX-512 oneDNN has no other
// way; above, this is three times as fast as its emulation, conversions included. It costs f32 copies of all operands. The
// results agree: products of two bf16 are exact in f32, in which both ways add them up.
void product_bf16(const Product& p, const Tensor& a, const Tensor& b, const Tensor& c) {
  if (processor_multiplies_bf16()) {
    const OpenMpThreads threads;
    return matmul_primitive(p, DType::bf16, a.raw(), b.raw(), c.dtype(), c.raw());
  }
  const Tensor wide_a = widened(a);
  const Tensor wide_b = widened(b);
  if (c.dtype() == DType::f32) return product_f32(p, wide_a.data<float>(), wide_b.data<float>(), c.data<float>());
  const Tensor wide_c = p.accumulate ? widened(c) : Tensor(c.shape(), DType::f32);
  product_f32(p, wide_a.data<float>(), wide_b.data<float>(), wide_c.data<float>());
  convert(wide_c, c);
}

struct Extents {
  std::int64_t rows, columns;
};
Extents extents(const Tensor& x, Transpose transpose) {
  std::int64_t rows = 1;  // Tensor::rows() cannot tell how many rows of no columns there are
  for (std::size_t i = 0; i + 1 < x.shape().size(); ++i) rows *= x.shape()[i];
  return transpose == Transpose::yes ? Extents{x.columns(), rows} : Extents{rows, x.columns()};
}

std::string described(const Tensor& x, Transpose transpose) {
  return fmt::format("[{}]{}", fmt::join(x.shape(), ", "), transpose == Transpose::yes ? " transposed" : "");
}

void check_product(const char* kernel, const Tensor& a, Transpose transpose_a, const Tensor& b, Transpose transpose_b,
                   const Tensor& c) {
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
  check_holds(kernel, "bias", bias, x.dtype(), y.columns());
}

void check_apart(const char* kernel, const char* one_name, const Tensor& one, const char* other_name, const Tensor& other) {
  const auto begin = [](const Tensor& tensor) { return reinterpret_cast<std::uintptr_t>(tensor.raw()); };
  require(begin(one) + one.bytes() <= begin(other) || begin(other) + other.bytes() <= begin(one),
          "{} got {} and {} in the same memory; give each its own.", kernel, one_name, other_name);
}

}  // namespace

void gemm(const Tensor& a, Transpose transpose_a, const Tensor& b, Transpose transpose_b, const Tensor& c, bool accumulate) {
  check_product("gemm", a, transpose_a, b, transpose_b, c);
  const KernelScope scope("gemm");
  if (c.size() == 0 || scope.skipped()) return;
  const auto [m, k] = extents(a, transpose_a);
  if (k == 0) {  // an empty sum
    if (!accumulate) c.zero();
    return;
  }
  if (on_gpu("gemm", a, b, c)) return gpu().kernels().gemm(a, transpose_a, b, transpose_b, c, accumulate, gpu_stream());
  cpu::cap_cpu_level();
  const Product product{transpose_a == Transpose::yes, transpose_b == Transpose::yes, m, c.columns(), k, accumulate};
  switch (a.dtype()) {
    case DType::f64: return product_f64(product, a.data<double>(), b.data<double>(), c.data<double>());
    case DType::f32: return product_f32(product, a.data<float>(), b.data<float>(), c.data<float>());
    default: return product_bf16(product, a, b, c);
  }
}

void linear(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& y) {
  check_linear("linear", x, weight, bias, y);
  if (on_gpu("linear", x, weight, bias, y) && y.size() > 0 && x.columns() > 0) {
    const KernelScope scope("linear");
    if (!scope.skipped()) gpu().kernels().linear(x, weight, bias, y, gpu_stream());
    return;
  }
  gemm(x, Transpose::no, weight, Transpose::yes, y);
  add_bias(y, bias);
}

void linear_gelu(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& before_gelu, const Tensor& y) {
  check_linear("linear_gelu", x, weight, bias, before_gelu);
  check_holds("linear_gelu", "y", y, x.dtype(), before_gelu.size());
  if (on_gpu("linear_gelu", x, weight, bias, before_gelu, y) && y.size() > 0 && x.columns() > 0) {
    const KernelScope scope("linear_gelu");
    if (!scope.skipped()) gpu().kernels().linear_gelu(x, weight, bias, before_gelu, y, gpu_stream());
    return;
  }
  gemm(x, Transpose::no, weight, Transpose::yes, before_gelu);
  add_bias_gelu(before_gelu, bias, y);
}

void linear_add(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& residual, const Tensor& y) {
  check_linear("linear_add", x, weight, bias, y);
  check_holds("linear_add", "residual", residual, y.dtype(), y.size());
  check_apart("linear_add", "residual", residual, "y", y);
  if (on_gpu("linear_add", x, weight, bias, residual, y) && y.size() > 0 && x.columns() > 0) {
    const KernelScope scope("linear_add");
    if (!scope.skipped()) gpu().kernels().linear_add(x, weight, bias, residual, y, gpu_stream());
    return;
  }
  linear(x, weight, bias, y);
  add(residual, y, y);
}

void linear_backward_gelu(const Tensor& dy, const Tensor& weight, const Tensor& before_gelu, const Tensor& dx) {
  check_product("linear_backward_gelu", dy, Transpose::no, weight, Transpose::no, dx);
  check_holds("linear_backward_gelu", "dx", dx, dy.dtype(), dx.size());
  check_holds("linear_backward_gelu", "before_gelu", before_gelu, dy.dtype(), dx.size());
  check_apart("linear_backward_gelu", "before_gelu", before_gelu, "dx", dx);
  if (on_gpu("linear_backward_gelu", dy, weight, before_gelu, dx) && dx.size() > 0 && dy.columns() > 0) {
    const KernelScope scope("linear_backward_gelu");
    if (!scope.skipped()) gpu().kernels().linear_backward_gelu(dy, weight, before_gelu, dx, gpu_stream());
    return;
  }
  gemm(dy, Transpose::no, weight, Transpose::no, dx);
  gelu_backward(before_gelu, dx, dx);
}

}  // namespace stretto::kernels
