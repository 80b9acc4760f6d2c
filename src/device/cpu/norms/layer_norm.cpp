#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/norms/layer_norm.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h, which includes this file again:
#include "device/cpu/cpu_level.hpp"
#include "device/cpu/host_kernels.hpp"
#include "device/cpu/simd-inl.hpp"
#include "device/cpu/wide_gradient.hpp"

// A row is read several times, but only once from memory: it fits into the L1 or L2 cache.
HWY_BEFORE_NAMESPACE();
namespace stretto::kernels::HWY_NAMESPACE {
namespace {

template <class T, class A = Accumulator<T>>
A mean_of(const T* x, std::int64_t columns) {
  return sum_over(AccumulatorTag<T>(), x, columns, [](auto v) HWY_ATTR { return v; }) / static_cast<A>(columns);
}

// A second pass, since the mean square minus the squared mean would cancel where the mean is large.
template <class T, class A = Accumulator<T>>
A rstd_of(const T* x, std::int64_t columns, A mean_of_row, A epsilon) {
  const AccumulatorTag<T> d;
  const auto mean = hn::Set(d, mean_of_row);
  const A squares = sum_over(d, x, columns, [mean](auto v) HWY_ATTR {
    const auto centred = hn::Sub(v, mean);
    return hn::Mul(centred, centred);
  });
  return A{1} / std::sqrt(squares / static_cast<A>(columns) + epsilon);
}

template <class T, class A = Accumulator<T>>
void normalize(const T* x, const T* gamma, const T* beta, A mean_of_row, A rstd_of_row, std::int64_t columns, T* y) {
  const AccumulatorTag<T> d;
  const auto mean = hn::Set(d, mean_of_row);
  const auto rstd = hn::Set(d, rstd_of_row);
  const auto result = [mean, rstd](auto v, auto gamma_c, auto beta_c)
                          HWY_ATTR { return hn::MulAdd(hn::Mul(hn::Sub(v, mean), rstd), gamma_c, beta_c); };
  for_each_of<TwoVectors>(d, columns, [&](std::int64_t c, auto which) HWY_ATTR {
    store_next(d, each(result, load(d, x + c, which), load(d, gamma + c, which), load(d, beta + c, which)), y + c, which);
  });
}

// With normal = (x - mean) rstd and g = dy gamma: dx += rstd (g - mean(g) - normal mean(g normal)), where dgamma and dbeta
// are sums over the rows of dy normal and dy.
template <class A>
struct Means {
  A g, g_normal;
};

template <class T, class A = Accumulator<T>>
Means<A> add_to_sums(const T* x, const T* gamma, A mean_of_row, A rstd_of_row, const T* dy, std::int64_t columns, A* dgamma,
                     A* dbeta) {
  const AccumulatorTag<T> d;
  const auto mean = hn::Set(d, mean_of_row);
  const auto rstd = hn::Set(d, rstd_of_row);
  auto sum_g = hn::Zero(d);
  auto sum_g_normal = hn::Zero(d);
  for_each_vector(d, columns, [&](std::int64_t c, auto lanes) HWY_ATTR {
    const auto gamma_c = load(d, gamma + c, lanes);  // zero in lanes without an element, and so is g
    const auto dy_c = load_next(d, dy + c, lanes);
    const auto normal = hn::Mul(hn::Sub(load_next(d, x + c, lanes), mean), rstd);
    const auto g = hn::Mul(dy_c, gamma_c);
    sum_g = hn::Add(sum_g, g);
    sum_g_normal = hn::MulAdd(g, normal, sum_g_normal);
    store(d, hn::MulAdd(dy_c, normal, load(d, dgamma + c, lanes)), dgamma + c, lanes);
    store(d, hn::Add(load(d, dbeta + c, lanes), dy_c), dbeta + c, lanes);
  });
  const A count = static_cast<A>(columns);
  return {hn::GetLane(hn::SumOfLanes(d, sum_g)) / count, hn::GetLane(hn::SumOfLanes(d, sum_g_normal)) / count};
}

template <class T, class A = Accumulator<T>>
void add_gradient(const T* x, const T* gamma, A mean_of_row, A rstd_of_row, const T* dy, Means<A> means,
                  std::int64_t columns, T* dx) {
  const AccumulatorTag<T> d;
  const auto mean = hn::Set(d, mean_of_row);
  const auto rstd = hn::Set(d, rstd_of_row);
  const auto mean_g = hn::Set(d, means.g);
  const auto slope = hn::Set(d, -rstd_of_row * means.g_normal);
  const auto result = [=](auto v, auto dy_c, auto gamma_c, auto dx_c) HWY_ATTR {
    const auto rest = hn::MulSub(hn::Sub(v, mean), slope, mean_g);
    return hn::MulAdd(hn::MulAdd(dy_c, gamma_c, rest), rstd, dx_c);
  };
  for_each_of<TwoVectors>(d, columns, [&](std::int64_t c, auto which) HWY_ATTR {
    const auto sum =
        each(result, load(d, x + c, which), load(d, dy + c, which), load(d, gamma + c, which), load_next(d, dx + c, which));
    store_next(d, sum, dx + c, which);
  });
}

}  // namespace

void layer_norm_forward_simd(const Tensor& x, const Tensor& gamma, const Tensor& beta, double epsilon, const Tensor& y,
                             const Tensor& mean, const Tensor& rstd) {
  with_compute_type(x.dtype(), [&]<class T>(T) {
    using A = Accumulator<T>;
    const std::int64_t rows = x.rows();  // kept: it is a product
    const std::int64_t columns = x.columns();
    const T* const first = x.data<T>();
    A* const means = mean.data<A>();
    A* const rstds = rstd.data<A>();
    // Three rows are in progress: each waits for its mean, then for its rstd, while the row before it goes on. Of the orders
    // of these three steps, this one is the fastest from memory.
    for (std::int64_t begun = 0; begun < rows + 2; ++begun) {
      if (const std::int64_t row = begun - 2; row >= 0) {
        normalize(first + row * columns, gamma.data<T>(), beta.data<T>(), means[row], rstds[row], columns,
                  y.data<T>() + row * columns);
      }
      if (const std::int64_t row = begun - 1; row >= 0 && row < rows) {
        rstds[row] = rstd_of(first + row * columns, columns, means[row], static_cast<A>(epsilon));
      }
      if (begun < rows) means[begun] = mean_of(first + begun * columns, columns);
    }
  });
}

void layer_norm_backward_simd(const Tensor& x, const Tensor& gamma, const Tensor& mean, const Tensor& rstd, const Tensor& dy,
                              const Tensor& dx, const Tensor& dgamma, const Tensor& dbeta) {
  with_compute_type(x.dtype(), [&]<class T>(T) {
    using A = Accumulator<T>;
    const std::int64_t rows = x.rows();  // kept: it is a product
    const std::int64_t columns = x.columns();
    const A* const means = mean.data<A>();
    const A* const rstds = rstd.data<A>();
    Means<A> of_row{};
    // A row waits for its means while the row before it is finished.
    for (std::int64_t begun = 0; begun < rows + 1; ++begun) {
      if (const std::int64_t row = begun - 1; row >= 0) {
        add_gradient(x.data<T>() + row * columns, gamma.data<T>(), means[row], rstds[row], dy.data<T>() + row * columns,
                     of_row, columns, dx.data<T>() + row * columns);
      }
      if (begun < rows) {
        of_row = add_to_sums(x.data<T>() + begun * columns, gamma.data<T>(), means[begun], rstds[begun],
                             dy.data<T>() + begun * columns, columns, dgamma.data<A>(), dbeta.data<A>());
      }
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
