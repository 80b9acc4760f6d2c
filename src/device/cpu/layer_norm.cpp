#include <cmath>
#include <vector>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/layer_norm.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h, which includes this file again:
#include "device/cpu/cpu_level.hpp"
#include "device/cpu/host_kernels.hpp"
#include "device/cpu/simd-inl.hpp"
#include "device/cpu/wide_gradient.hpp"

// A row is read several times, but only once from memory: it fits into the L1 or L2 cache. Rows of 16-bit elements are
// widened once, and gamma and beta once for all rows: conversions would take longer than all else.
HWY_BEFORE_NAMESPACE();
namespace stretto::kernels::HWY_NAMESPACE {
namespace {

template <class T, class A = Accumulator<T>>
void forward_row(const A* x, const A* gamma, const A* beta, A epsilon, std::int64_t columns, T* y, A* mean_out,
                 A* rstd_out) {
  const AccumulatorTag<T> d;
  const A sum = sum_over(d, columns, [&](std::int64_t c, auto lanes) HWY_ATTR { return load(d, x + c, lanes); });
  const auto mean = hn::Set(d, sum / static_cast<A>(columns));
  // A second pass, since the mean square minus the squared mean would cancel where the mean is large.
  const A squares = sum_over(d, columns, [&](std::int64_t c, auto lanes) HWY_ATTR {
    const auto centred = hn::Sub(load(d, x + c, lanes), mean);
    return hn::Mul(centred, centred);
  });
  const auto rstd = hn::Set(d, A{1} / std::sqrt(squares / static_cast<A>(columns) + epsilon));
  for_each_vector(d, columns, [&](std::int64_t c, auto lanes) HWY_ATTR {
    const auto normal = hn::Mul(hn::Sub(load(d, x + c, lanes), mean), rstd);
    store(d, hn::MulAdd(normal, load(d, gamma + c, lanes), load(d, beta + c, lanes)), y + c, lanes);
  });
  *mean_out = hn::GetLane(mean);
  *rstd_out = hn::GetLane(rstd);
}

// With normal = (x - mean) rstd and g = dy gamma: dx += rstd (g - mean(g) - normal mean(g normal)).
template <class T, class A = Accumulator<T>>
void backward_row(const A* x, const A* gamma, A mean_of_row, A rstd_of_row, const A* dy, std::int64_t columns, T* dx,
                  A* dgamma, A* dbeta) {
  const AccumulatorTag<T> d;
  const auto mean = hn::Set(d, mean_of_row);
  const auto rstd = hn::Set(d, rstd_of_row);
  auto sum_g = hn::Zero(d);
  auto sum_g_normal = hn::Zero(d);
  for_each_vector(d, columns, [&](std::int64_t c, auto lanes) HWY_ATTR {
    const auto dy_c = load(d, dy + c, lanes);
    const auto normal = hn::Mul(hn::Sub(load(d, x + c, lanes), mean), rstd);
    store(d, hn::MulAdd(dy_c, normal, load(d, dgamma + c, lanes)), dgamma + c, lanes);
    store(d, hn::Add(load(d, dbeta + c, lanes), dy_c), dbeta + c, lanes);
    const auto g = hn::Mul(dy_c, load(d, gamma + c, lanes));  // zero in lanes without an element
    sum_g = hn::Add(sum_g, g);
    sum_g_normal = hn::MulAdd(g, normal, sum_g_normal);
  });
  const auto mean_g = hn::Div(hn::SumOfLanes(d, sum_g), hn::Set(d, static_cast<A>(columns)));
  const auto mean_g_normal = hn::Div(hn::SumOfLanes(d, sum_g_normal), hn::Set(d, static_cast<A>(columns)));
  for_each_vector(d, columns, [&](std::int64_t c, auto lanes) HWY_ATTR {
    const auto normal = hn::Mul(hn::Sub(load(d, x + c, lanes), mean), rstd);
    const auto g = hn::Mul(load(d, dy + c, lanes), load(d, gamma + c, lanes));
    const auto change = hn::NegMulAdd(normal, mean_g_normal, hn::Sub(g, mean_g));
    store(d, hn::MulAdd(change, rstd, load(d, dx + c, lanes)), dx + c, lanes);
  });
}

// Rows in the accumulator type, one of each number; none if T is that type.
template <class T>
class WideRows {
 public:
  WideRows(std::int64_t rows, std::int64_t columns) : columns_(columns) {
    if (!std::is_same_v<T, Accumulator<T>>) scratch_.resize(static_cast<std::size_t>(rows * columns));
  }
  const Accumulator<T>* of(const T* from, std::int64_t row) {
    return widened(from, columns_, scratch_.data() + (scratch_.empty() ? 0 : row * columns_));
  }

 private:
  std::int64_t columns_;
  std::vector<Accumulator<T>> scratch_;
};

}  // namespace

void layer_norm_forward_simd(const Tensor& x, const Tensor& gamma, const Tensor& beta, double epsilon, const Tensor& y,
                             const Tensor& mean, const Tensor& rstd) {
  with_compute_type(x.dtype(), [&]<class T>(T) {
    using A = Accumulator<T>;
    const std::int64_t columns = x.columns();
    WideRows<T> wide(3, columns);
    const A* const wide_gamma = wide.of(gamma.data<T>(), 0);
    const A* const wide_beta = wide.of(beta.data<T>(), 1);
    for (std::int64_t row = 0; row < x.rows(); ++row) {
      const T* const x_row = x.data<T>() + row * columns;
      T* const y_row = y.data<T>() + row * columns;
      forward_row(wide.of(x_row, 2), wide_gamma, wide_beta, static_cast<A>(epsilon), columns, y_row, mean.data<A>() + row,
                  rstd.data<A>() + row);
    }
  });
}

void layer_norm_backward_simd(const Tensor& x, const Tensor& gamma, const Tensor& mean, const Tensor& rstd, const Tensor& dy,
                              const Tensor& dx, const Tensor& dgamma, const Tensor& dbeta) {
  with_compute_type(x.dtype(), [&]<class T>(T) {
    using A = Accumulator<T>;
    const std::int64_t columns = x.columns();
    WideRows<T> wide(3, columns);
    const A* const wide_gamma = wide.of(gamma.data<T>(), 0);
    for (std::int64_t row = 0; row < x.rows(); ++row) {
      const T* const x_row = x.data<T>() + row * columns;
      const T* const dy_row = dy.data<T>() + row * columns;
      T* const dx_row = dx.data<T>() + row * columns;
      backward_row(wide.of(x_row, 1), wide_gamma, mean.data<A>()[row], rstd.data<A>()[row], wide.of(dy_row, 2), columns,
                   dx_row, dgamma.data<A>(), dbeta.data<A>());
    }
  });
}

}  // namespace stretto::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace stretto::kernels::cpu {

HWY_EXPORT(layer_norm_forward_simd);
HWY_EXPORT(layer_norm_backward_simd);

void layer_norm_forward(const Tensor& x, const Tensor& gamma, const Tensor& beta, double epsilon, const Tensor& y,
                        const Tensor& mean, const Tensor& rstd) {
  STRETTO_DISPATCH(layer_norm_forward_simd)(x, gamma, beta, epsilon, y, mean, rstd);
}

void layer_norm_backward(const Tensor& x, const Tensor& gamma, const Tensor& mean, const Tensor& rstd, const Tensor& dy,
                         const Tensor& dx, const Tensor& dgamma, const Tensor& dbeta) {
  const WideGradient wide_dgamma(dgamma);
  const WideGradient wide_dbeta(dbeta);
  STRETTO_DISPATCH(layer_norm_backward_simd)(x, gamma, mean, rstd, dy, dx, wide_dgamma.tensor(), wide_dbeta.tensor());
}

}  // namespace stretto::kernels::cpu
#endif
