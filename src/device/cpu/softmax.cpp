#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/softmax.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h, which includes this file again:
#include "device/cpu/cpu_level.hpp"
#include "device/cpu/exp-inl.hpp"
#include "device/cpu/host_kernels.hpp"
#include "device/cpu/simd-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace stretto::kernels::HWY_NAMESPACE {
namespace {

template <class T>
void softmax_row(const T* x, T* y, std::int64_t columns) {
  const AccumulatorTag<T> d;
  const auto max = hn::Set(d, largest(x, columns));
  const auto exponential = [d, max](auto v) HWY_ATTR { return exp(d, hn::Sub(v, max)); };
  const auto inverse_sum = hn::Set(d, 1 / sum_over(d, x, columns, exponential));
  // Exponentials are computed twice: a 16-bit y would round them an additional time in between.
  for_each_vector(d, columns, [&](std::int64_t c, auto lanes) HWY_ATTR {
    store(d, hn::Mul(exponential(load(d, x + c, lanes)), inverse_sum), y + c, lanes);
  });
}

}  // namespace

void softmax_simd(const Tensor& x, const Tensor& y) {
  with_compute_type(x.dtype(), [&]<class T>(T) {
    const std::int64_t columns = x.columns();
    for (std::int64_t row = 0; row < x.rows(); ++row) {
      softmax_row(x.data<T>() + row * columns, y.data<T>() + row * columns, columns);
    }
  });
}

}  // namespace stretto::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace stretto::kernels::cpu {

HWY_EXPORT(softmax_simd);

void softmax(const Tensor& x, const Tensor& y) { STRETTO_DISPATCH(softmax_simd)(x, y); }

}  // namespace stretto::kernels::cpu
#endif
