#include <algorithm>
#include <cmath>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/cross_entropy.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h, which includes this file again:
#include "device/cpu/cpu_level.hpp"
#include "device/cpu/exp-inl.hpp"
#include "device/cpu/host_kernels.hpp"
#include "device/cpu/simd-inl.hpp"

// A share of the vocabulary may have no columns; only the other tensors then tell the number of rows.
HWY_BEFORE_NAMESPACE();
namespace stretto::kernels::HWY_NAMESPACE {
namespace {

template <class T, class A = Accumulator<T>>
A sum_of_exp(const T* logits, std::int64_t columns, A max_of_row) {
  if (max_of_row == -std::numeric_limits<A>::infinity()) return 0;  // no columns, or all of them masked
  const AccumulatorTag<T> d;
  const auto max = hn::Set(d, max_of_row);
  return sum_over(d, logits, columns, [d, max](auto v) HWY_ATTR { return exp(d, hn::Sub(v, max)); });
}

// target: a column of this share; any other value means that the target is not in this share.
template <class T, class A = Accumulator<T>>
void gradient_row(T* logits, std::int64_t columns, std::int64_t target, A max_of_row, A sum_exp, A factor) {
  const AccumulatorTag<T> d;
  const auto max = hn::Set(d, max_of_row);
  const auto weight = hn::Set(d, factor / sum_exp);
  const auto gradient = [&](auto logit) HWY_ATTR { return hn::Mul(exp(d, hn::Sub(logit, max)), weight); };
  const bool here = target >= 0 && target < columns;
  auto target_gradient = hn::Zero(d);
  if (here) target_gradient = hn::Sub(gradient(load(d, logits + target, FirstLanes{1})), hn::Set(d, factor));
  for_each_vector(d, columns, [&](std::int64_t c, auto lanes) HWY_ATTR {
    store(d, gradient(load(d, logits + c, lanes)), logits + c, lanes);
  });
  if (here) store(d, target_gradient, logits + target, FirstLanes{1});
}

}  // namespace

void cross_entropy_forward_simd(const Tensor& logits, const Tensor& targets, std::int64_t first, const Tensor& row_max,
                                const Tensor& sum_exp, const Tensor& target_logit) {
  with_compute_type(logits.dtype(), [&]<class T>(T) {
    using A = Accumulator<T>;
    const std::int64_t columns = logits.columns();
    for (std::int64_t row = 0; row < row_max.size(); ++row) {
      const T* const x = logits.data<T>() + row * columns;
      const std::int64_t token = targets.data<std::int32_t>()[row], target = token - first;
      const bool counts = token >= 0;
      const A max = counts ? largest(x, columns) : A{0};
      row_max.data<A>()[row] = max;
      sum_exp.data<A>()[row] = counts ? sum_of_exp(x, columns, max) : A{1};
      target_logit.data<A>()[row] = target >= 0 && target < columns ? static_cast<A>(x[target]) : A{0};
    }
  });
}

void cross_entropy_backward_simd(const Tensor& logits, const Tensor& targets, std::int64_t first, const Tensor& row_max,
                                 const Tensor& sum_exp, double factor) {
  with_compute_type(logits.dtype(), [&]<class T>(T) {
    using A = Accumulator<T>;
    const std::int64_t columns = logits.columns();
    for (std::int64_t row = 0; row < row_max.size(); ++row) {
      T* const x = logits.data<T>() + row * columns;
      const std::int64_t token = targets.data<std::int32_t>()[row];
      if (token < 0) {
        std::fill_n(x, columns, T{});
        continue;
      }
      gradient_row(x, columns, token - first, row_max.data<A>()[row], sum_exp.data<A>()[row], static_cast<A>(factor));
    }
  });
}

}  // namespace stretto::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace stretto::kernels::cpu {

HWY_EXPORT(cross_entropy_forward_simd);
HWY_EXPORT(cross_entropy_backward_simd);

void cross_entropy_forward(const Tensor& logits, const Tensor& targets, std::int64_t first, const Tensor& row_max,
                           const Tensor& sum_exp, const Tensor& target_logit) {
  STRETTO_DISPATCH(cross_entropy_forward_simd)(logits, targets, first, row_max, sum_exp, target_logit);
}

void cross_entropy_backward(const Tensor& logits, const Tensor& targets, std::int64_t first, const Tensor& row_max,
                            const Tensor& sum_exp, double factor) {
  STRETTO_DISPATCH(cross_entropy_backward_simd)(logits, targets, first, row_max, sum_exp, factor);
}

void cross_entropy_rebase(const Tensor& share_max, const Tensor& row_max, const Tensor& sum_exp) {
  with_compute_type(share_max.dtype(), [&]<class T>(T) {
    using A = Accumulator<T>;
    const A* const from = share_max.data<A>();
    const A* const to = row_max.data<A>();
    A* const sum = sum_exp.data<A>();
    // A share without columns has the sum 0 and no largest logit.
    for (std::int64_t row = 0; row < sum_exp.size(); ++row) sum[row] *= sum[row] == 0 ? A{1} : std::exp(from[row] - to[row]);
  });
}

}  // namespace stretto::kernels::cpu
#endif
