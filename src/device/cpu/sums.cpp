#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/sums.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h, which includes this file again:
#include "device/cpu/cpu_level.hpp"
#include "device/cpu/host_kernels.hpp"
#include "device/cpu/simd-inl.hpp"
#include "device/cpu/wide_gradient.hpp"

HWY_BEFORE_NAMESPACE();
namespace stretto::kernels::HWY_NAMESPACE {
namespace {

// sums[c] += x[0][c] + ..., one row after the other. Taking several rows at a time only saves loads and stores of the sums;
// the result does not depend on it.
template <int rows, class T>
HWY_INLINE void add_rows(const T* x, std::int64_t columns, Accumulator<T>* sums) {
  const AccumulatorTag<T> d;
  for_each_vector(d, columns, [&](std::int64_t c, auto lanes) HWY_ATTR {
    auto sum = load(d, sums + c, lanes);
    for (int row = 0; row < rows; ++row) sum = hn::Add(sum, load(d, x + row * columns + c, lanes));
    store(d, sum, sums + c, lanes);
  });
}

template <class T>
void add_column_sums_of(const T* x, std::int64_t rows, std::int64_t columns, Accumulator<T>* sums) {
  constexpr int together = 8;
  std::int64_t row = 0;
  for (; row + together <= rows; row += together) add_rows<together>(x + row * columns, columns, sums);
  for (; row < rows; ++row) add_rows<1>(x + row * columns, columns, sums);
}

template <class T>
double sum_of_squares_of(const T* x, std::int64_t count) {
  const hn::ScalableTag<double> d;
  return sum_over(d, x, count, [](auto v) HWY_ATTR { return hn::Mul(v, v); });
}

}  // namespace

void add_column_sums_simd(const Tensor& x, const Tensor& sums) {
  with_compute_type(
      x.dtype(), [&]<class T>(T) { add_column_sums_of(x.data<T>(), x.rows(), x.columns(), sums.data<Accumulator<T>>()); });
}

double sum_of_squares_simd(const Tensor& x) {
  double sum = 0;
  with_compute_type(x.dtype(), [&]<class T>(T) { sum = sum_of_squares_of(x.data<T>(), x.size()); });
  return sum;
}

}  // namespace stretto::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace stretto::kernels::cpu {

HWY_EXPORT(add_column_sums_simd);
HWY_EXPORT(sum_of_squares_simd);

void add_column_sums(const Tensor& x, const Tensor& sums) {
  const WideGradient wide_sums(sums);
  STRETTO_DISPATCH(add_column_sums_simd)(x, wide_sums.tensor());
}

double sum_of_squares(const Tensor& x) { return STRETTO_DISPATCH(sum_of_squares_simd)(x); }

}  // namespace stretto::kernels::cpu
#endif
