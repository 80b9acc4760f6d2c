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

// A row is read several times, but only once from memory: it fits into the L1 or L2 cache. What 16-bit elements were widened
// to is kept for the row's later passes, as are gamma and beta for all rows: conversions would take longer than all else.
HWY_BEFORE_NAMESPACE();
namespace stretto::kernels::HWY_NAMESPACE {
namespace {

template <class T>
constexpr bool is_narrow = !std::is_same_v<T, Accumulator<T>>;

// wide: scratch for the row, used if T is narrow.
template <class T, class A = Accumulator<T>>
void forward_row(const T* x_row, const A* gamma, const A* beta, A epsilon, std::int64_t columns, T* y, A* mean_out,
                 A* rstd_out, A* wide) {
  const AccumulatorTag<T> d;
  const A sum = sum_over(d, columns, [&](std::int64_t c, auto lanes) HWY_ATTR {
    const auto element = load(d, x_row + c, lanes);
    if constexpr (is_narrow<T>) store(d, element, wide + c, lanes);
    return element;
  });
  const A* x = wide;
  if constexpr (!is_narrow<T>) x = x_row;
  const auto mean = hn::Set(d, sum / static_cast<A>(columns));
  // A second pass, since the mean square minus the squared mean would cancel where the mean is large.
  const A squares = sum_over(d, columns, [&](std::int64_t c, auto lanes) HWY_ATTR {
    const auto centred = hn::Sub(load(d, x + c, lanes), mean);
    return hn::Mul(centred, centred);
  });
  const auto rstd = hn::Set(d, A{1} / std::sqrt(squares / static_cast<A>(columns) + epsilon));
  for_each_vector(d, columns, [&](std::int64_t c, auto lanes) HWY_ATTR {
    const auto normal = hn::Mul(hn::Sub(load(d, x + c, lanes), mean), rstd);
    store_result(d, hn::MulAdd(normal, load(d, gamma + c, lanes), load(d, beta + c, lanes)), y + c, lanes);
  });
  *mean_out = hn::GetLane(mean);
  *rstd_out = hn::GetLane(rstd);
}

// With normal = (x - mean) rstd and g = dy gamma: dx += rstd (g - mean(g) - normal mean(g normal)).
// wide: scratch for two rows, used if T is narrow: normal and g for the second pass.
template <class T, class A = Accumulator<T>>
void backward_row(const T* x, const A* gamma, A mean_of_row, A rstd_of_row, const T* dy, std::int64_t columns, T* dx,
                  A* dgamma, A* dbeta, A* wide) {
  const AccumulatorTag<T> d;
  const auto mean = hn::Set(d, mean_of_row);
  const auto rstd = hn::Set(d, rstd_of_row);
  A* const wide_g = wide + columns;
  auto sum_g = hn::Zero(d);
  auto sum_g_normal = hn::Zero(d);
  for_each_vector(d, columns, [&](std::int64_t c, auto lanes) HWY_ATTR {
    const auto gamma_c = load(d, gamma + c, lanes);  // zero in lanes without an element, and so is g
    const auto dgamma_c = load(d, dgamma + c, lanes);
    const auto dbeta_c = load(d, dbeta + c, lanes);
    const auto dy_c = load(d, dy + c, lanes);
    const auto normal = hn::Mul(hn::Sub(load(d, x + c, lanes), mean), rstd);
    const auto g = hn::Mul(dy_c, gamma_c);
    sum_g = hn::Add(sum_g, g);
    sum_g_normal = hn::MulAdd(g, normal, sum_g_normal);
    store(d, hn::MulAdd(dy_c, normal, dgamma_c), dgamma + c, lanes);
    store(d, hn::Add(dbeta_c, dy_c), dbeta + c, lanes);
    if constexpr (is_narrow<T>) {
      store(d, normal, wide + c, lanes);
      store(d, g, wide_g + c, lanes);
    }
  });
  const auto mean_g = hn::Div(hn::SumOfLanes(d, sum_g), hn::Set(d, static_cast<A>(columns)));
  const auto mean_g_normal = hn::Div(hn::SumOfLanes(d, sum_g_normal), hn::Set(d, static_cast<A>(columns)));
  for_each_vector(d, columns, [&](std::int64_t c, auto lanes) HWY_ATTR {
    auto normal = hn::Zero(d);
    auto g = hn::Zero(d);
    if constexpr (is_narrow<T>) {
      normal = load(d, wide + c, lanes);
      g = load(d, wide_g + c, lanes);
    } else {
      normal = hn::Mul(hn::Sub(load(d, x + c, lanes), mean), rstd);
      g = hn::Mul(load(d, dy + c, lanes), load(d, gamma + c, lanes));
    }
    const auto change = hn::NegMulAdd(normal, mean_g_normal, hn::Sub(g, mean_g));
    store_result(d, hn::MulAdd(change, rstd, load(d, dx + c, lanes)), dx + c, lanes);
  });
}

// Rows in the accumulator type, one of each number; none if T is that type.
template <class T>
class WideRows {
 public:
  WideRows(std::int64_t rows, std::int64_t columns) : columns_(columns) {
    if (is_narrow<T>) scratch_.resize(static_cast<std::size_t>(rows * columns));
  }
  Accumulator<T>* at(std::int64_t row) { return is_narrow<T> ? scratch_.data() + row * columns_ : nullptr; }
  const Accumulator<T>* of(const T* from, std::int64_t row) { return widened(from, columns_, at(row)); }

 private:
  std::int64_t columns_;
  std::vector<Accumulator<T>> scratch_;
};

}  // namespace

void layer_norm_forward_simd(const Tensor& x, const Tensor& gamma, const Tensor& beta, double epsilon, const Tensor& y,
                             const Tensor& mean, const Tensor& rstd) {
  with_compute_type(x.dtype(), [&]<class T>(T) {
    using A = Accumulator<T>;
    const std::int64_t rows = x.rows();  // kept: it is a product
    const std::int64_t columns = x.columns();
    WideRows<T> wide(3, columns);
    const A* const wide_gamma = wide.of(gamma.data<T>(), 0);
    const A* const wide_beta = wide.of(beta.data<T>(), 1);
    for (std::int64_t row = 0; row < rows; ++row) {
      const T* const x_row = x.data<T>() + row * columns;
      T* const y_row = y.data<T>() + row * columns;
      forward_row(x_row, wide_gamma, wide_beta, static_cast<A>(epsilon), columns, y_row, mean.data<A>() + row,
                  rstd.data<A>() + row, wide.at(2));
    }
  });
}

void layer_norm_backward_simd(const Tensor& x, const Tensor& gamma, const Tensor& mean, const Tensor& rstd, const Tensor& dy,
                              const Tensor& dx, const Tensor& dgamma, const Tensor& dbeta) {
  with_compute_type(x.dtype(), [&]<class T>(T) {
    using A = Accumulator<T>;
    const std::int64_t rows = x.rows();  // kept: it is a product
    const std::int64_t columns = x.columns();
    WideRows<T> wide(3, columns);
    const A* const wide_gamma = wide.of(gamma.data<T>(), 0);
    for (std::int64_t row = 0; row < rows; ++row) {
      const T* const x_row = x.data<T>() + row * columns;
      const T* const dy_row = dy.data<T>() + row * columns;
      T* const dx_row = dx.data<T>() + row * columns;
      backward_row(x_row, wide_gamma, mean.data<A>()[row], rstd.data<A>()[row], dy_row, columns, dx_row, dgamma.data<A>(),
                   dbeta.data<A>(), wide.at(1));
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
