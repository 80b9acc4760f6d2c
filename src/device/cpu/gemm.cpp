#include <omp.h>

#include <algorithm>
#include <array>
#include <limits>

#include "core/fail.hpp"
#include "device/cpu/cpu_level.hpp"
#include "device/cpu/host_kernels.hpp"
#include "device/cpu/matmul_primitive.hpp"
#include "device/cpu/product_libraries.hpp"
#include "device/cpu/products/compute_threads.hpp"
#include "device/cpu/products/held_signals.hpp"
#include "device/cpu/products/tile_product.hpp"

// The library for each element type was chosen by measuring the products of layers like GPT-2's.
namespace stretto::kernels::cpu {
namespace {

// OpenMP keeps the number of threads for each calling thread: oneDNN runs with this number, and the caller's is restored.
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
  [[maybe_unused]] static const bool once = (openblas_set_num_threads(compute_threads()), true);  // for the whole process
  require(std::max({p.m, p.n, p.k}) <= std::numeric_limits<blasint>::max(), "f64 matrices of {} x {} x {} are too large.",
          p.m, p.n, p.k);
  const auto transposed = [](bool yes) { return yes ? CblasTrans : CblasNoTrans; };
  const auto [m, n, k] = std::array{static_cast<blasint>(p.m), static_cast<blasint>(p.n), static_cast<blasint>(p.k)};
  cblas_dgemm(CblasRowMajor, transposed(p.transpose_a), transposed(p.transpose_b), m, n, k, 1, a, p.transpose_a ? m : k, b,
              p.transpose_b ? k : n, p.accumulate ? 1 : 0, c, n);
}

// A transposed a is read down its columns. It stays in the cache if a and b are cut into slices of this many rows, which is
// up to a seventh faster.
constexpr std::int64_t rows_of_slice = 256;

// dnnl_sgemm is the fastest, except for small n and k, where the primitive is faster by a tenth.
bool is_small(const Product& p) { return !p.transpose_a && p.n < 512 && p.k < 512; }

void product_f32(const Product& p, const float* a, const float* b, float* c) {
  cap_onednn();
  const OpenMpThreads threads;
  if (is_small(p)) return matmul_primitive(p, DType::f32, a, b, DType::f32, c);
  const HeldSignals held;
  const std::int64_t slice = p.transpose_a ? rows_of_slice : p.k;
  const std::int64_t row_a = p.transpose_a ? p.m : p.k;
  const std::int64_t row_b = p.transpose_b ? p.k : p.n;
  for (std::int64_t k = 0; k < p.k; k += slice) {
    const bool accumulate = p.accumulate || k > 0;
    const dnnl_status_t status = dnnl::dnnl_sgemm(p.transpose_a ? 'T' : 'N', p.transpose_b ? 'T' : 'N', p.m, p.n,
                                                  std::min(slice, p.k - k), 1, a + k * (p.transpose_a ? row_a : 1), row_a,
                                                  b + k * (p.transpose_b ? 1 : row_b), row_b, accumulate ? 1 : 0, c, p.n);
    ensure(status == dnnl_success, "dnnl_sgemm failed with status {}.", static_cast<int>(status));
  }
}

void convert_elements(const Tensor& from, const Tensor& to) {
  convert(from.dtype(), from.raw(), to.dtype(), to.raw(), from.size());
}

Tensor widened(const Tensor& x) {
  Tensor wide(x.shape(), DType::f32, Device::cpu);
  convert_elements(x, wide);
  return wide;
}

// For smaller products the copies that tile_product makes cost more than oneDNN's slower loops.
bool fills_tiles(const Product& p) { return std::min({p.m, p.n, p.k}) >= 32; }

// Products of 16-bit elements. Without instructions for them, a and b are widened to f32 and the product is rounded once:
// oneDNN 2.6 multiplies no f16, and no bf16 below AVX-512; above, this is three times as fast as its emulation of bf16,
// conversions included. It costs f32 copies of the operands; for a weight's gradient, of rows_of_slice rows at a time. The
// results agree: products of two bf16, or of two f16, are exact in f32, in which both ways add them up.
void product_16_bits(const Product& p, const Tensor& a, const Tensor& b, const Tensor& c) {
  if (a.dtype() == DType::bf16 && processor_multiplies_bf16()) {
    if (fills_tiles(p) && processor_has_tiles())
      return tile_product(p, a.raw(), b.raw(), c.dtype(), c.raw(), compute_threads());
    const OpenMpThreads threads;
    return matmul_primitive(p, DType::bf16, a.raw(), b.raw(), c.dtype(), c.raw());
  }
  const MemoryScope scratch(MemoryKind::other);
  const Tensor sum = c.dtype() == DType::f32 ? c : p.accumulate ? widened(c) : Tensor(c.shape(), DType::f32, Device::cpu);
  const bool in_slices = p.transpose_a && !p.transpose_b;  // k counts the rows of both
  const std::int64_t most = in_slices ? rows_of_slice : p.k;
  for (std::int64_t k = 0; k < p.k; k += most) {
    Product slice = p;
    slice.k = std::min(most, p.k - k);
    slice.accumulate = p.accumulate || k > 0;
    const auto part = [&](const Tensor& x) { return in_slices ? x.view(k * x.columns(), {slice.k, x.columns()}) : x; };
    const Tensor wide_a = widened(part(a));
    const Tensor wide_b = widened(part(b));
    product_f32(slice, wide_a.data<float>(), wide_b.data<float>(), sum.data<float>());
  }
  if (c.dtype() != DType::f32) convert_elements(sum, c);
}

}  // namespace

void gemm(const Tensor& a, Transpose transpose_a, const Tensor& b, Transpose transpose_b, const Tensor& c, bool accumulate) {
  cap_cpu_level();
  const std::int64_t m = c.rows();
  const Product product{
      transpose_a == Transpose::yes, transpose_b == Transpose::yes, m, c.columns(), a.size() / m, accumulate};
  switch (a.dtype()) {
    case DType::f64: return product_f64(product, a.data<double>(), b.data<double>(), c.data<double>());
    case DType::f32: return product_f32(product, a.data<float>(), b.data<float>(), c.data<float>());
    default: return product_16_bits(product, a, b, c);
  }
}

}  // namespace stretto::kernels::cpu
