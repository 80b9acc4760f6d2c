#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/norms/rms_norm.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h, which includes this file again:
#include "device/cpu/cpu_level.hpp"
#include "device/cpu/head_places.hpp"
#include "device/cpu/host_kernels.hpp"
#include "device/cpu/simd-inl.hpp"
#include "device/cpu/wide_gradient.hpp"

// A head (or a row, which is one head) is read several times, but only once from memory: it fits into the L1 or L2 cache.
HWY_BEFORE_NAMESPACE();
namespace stretto::kernels::HWY_NAMESPACE {
namespace {

template <class T, class A = Accumulator<T>>
A rstd_of(const T* x, std::int64_t size, A epsilon) {
  const A squares = sum_over(AccumulatorTag<T>(), x, size, [](auto v) HWY_ATTR { return hn::Mul(v, v); });
  return A{1} / std::sqrt(squares / static_cast<A>(size) + epsilon);
}

// v as an element of T holds it.
template <class T, class D>
HWY_INLINE hn::Vec<D> rounded(D d, hn::Vec<D> v) {
  if constexpr (std::is_same_v<T, hn::TFromD<D>>) {
    return v;
  } else {
    return widen(d, Type<T>{}, narrow_normal(d, Type<T>{}, v));
  }
}

template <class T, class A = Accumulator<T>>
void normalize(const T* x, const T* gamma, A rstd_of_head, std::int64_t size, T* y) {
  const AccumulatorTag<T> d;
  const auto rstd = hn::Set(d, rstd_of_head);
  const auto result = [d, rstd](auto v, auto gamma_c) HWY_ATTR { return hn::Mul(rounded<T>(d, hn::Mul(v, rstd)), gamma_c); };
  for_each_of<TwoVectors>(d, size, [&](std::int64_t c, auto which) HWY_ATTR {
    store_result(d, each(result, load(d, x + c, which), load(d, gamma + c, which)), y + c, which);
  });
}

// With normal = x rstd and g = dy gamma: dx (+)= rstd (g - normal mean(g normal)), where dgamma is the sum over heads of dy
// normal. Returns mean(g normal).
template <class T, class A = Accumulator<T>>
A add_to_sums(const T* x, const T* gamma, A rstd_of_head, const T* dy, std::int64_t size, A* dgamma) {
  const AccumulatorTag<T> d;
  const auto rstd = hn::Set(d, rstd_of_head);
  auto sum = hn::Zero(d);
  for_each_vector(d, size, [&](std::int64_t c, auto lanes) HWY_ATTR {
    const auto dy_normal = hn::Mul(load(d, dy + c, lanes), hn::Mul(load(d, x + c, lanes), rstd));
    sum = hn::MulAdd(dy_normal, load(d, gamma + c, lanes), sum);  // gamma is zero in lanes without an element
    store(d, hn::Add(load(d, dgamma + c, lanes), dy_normal), dgamma + c, lanes);
  });
  return hn::GetLane(hn::SumOfLanes(d, sum)) / static_cast<A>(size);
}

template <bool adds, class T, class A = Accumulator<T>>
void put_gradient(const T* x, const T* gamma, A rstd_of_head, const T* dy, A mean, std::int64_t size, T* dx) {
  const AccumulatorTag<T> d;
  const auto rstd = hn::Set(d, rstd_of_head);
  const auto slope = hn::Set(d, -rstd_of_head * rstd_of_head * mean);
  const auto result = [rstd, slope](auto v, auto dy_c, auto gamma_c, auto before)
                          HWY_ATTR { return hn::MulAdd(hn::Mul(dy_c, gamma_c), rstd, hn::MulAdd(v, slope, before)); };
  const auto first = [rstd, slope](auto v, auto dy_c, auto gamma_c)
                         HWY_ATTR { return hn::MulAdd(hn::Mul(dy_c, gamma_c), rstd, hn::Mul(v, slope)); };
  for_each_of<TwoVectors>(d, size, [&](std::int64_t c, auto which) HWY_ATTR {
    const auto v = load(d, x + c, which);
    const auto dy_c = load(d, dy + c, which);
    const auto gamma_c = load(d, gamma + c, which);
    if constexpr (adds) {
      store_result(d, each(result, v, dy_c, gamma_c, load(d, dx + c, which)), dx + c, which);
    } else {
      store_result(d, each(first, v, dy_c, gamma_c), dx + c, which);
    }
  });
}

}  // namespace

// In both passes, a head waits for its statistics while the head before it is finished.
void rms_norm_forward_simd(const TokenHeads& x, std::int64_t heads, const Tensor& gamma, double epsilon, const TokenHeads& y,
                           const Tensor& rstd) {
  with_compute_type(gamma.dtype(), [&]<class T>(T) {
    using A = Accumulator<T>;
    const std::int64_t size = gamma.size();
    const cpu::HeadPlaces<T> from(x, heads, size);
    const cpu::HeadPlaces<T> to(y, heads, size);
    A* const rstds = rstd.data<A>();
    cpu::PlaceOfHead begun, finished;
    for (std::int64_t n = 0; n < rstd.size() + 1; ++n) {
      if (n > 0) {
        normalize(from.at(finished), gamma.data<T>(), rstds[n - 1], size, to.at(finished));
        finished.advance(heads);
      }
      if (n < rstd.size()) {
        rstds[n] = rstd_of(from.at(begun), size, static_cast<A>(epsilon));
        begun.advance(heads);
      }
    }
  });
}

void rms_norm_backward_simd(const TokenHeads& x, std::int64_t heads, const Tensor& gamma, const Tensor& rstd,
                            const TokenHeads& dy, const TokenHeads& dx, bool adds, const Tensor& dgamma) {
  with_compute_type(gamma.dtype(), [&]<class T>(T) {
    using A = Accumulator<T>;
    const std::int64_t size = gamma.size();
    const cpu::HeadPlaces<T> of_x(x, heads, size);
    const cpu::HeadPlaces<T> of_dy(dy, heads, size);
    const cpu::HeadPlaces<T> of_dx(dx, heads, size);
    const A* const rstds = rstd.data<A>();
    A mean{};
    cpu::PlaceOfHead begun, finished;
    for (std::int64_t n = 0; n < rstd.size() + 1; ++n) {
      if (n > 0) {
        const auto put = adds ? put_gradient<true, T> : put_gradient<false, T>;
        put(of_x.at(finished), gamma.data<T>(), rstds[n - 1], of_dy.at(finished), mean, size, of_dx.at(finished));
        finished.advance(heads);
      }
      if (n < rstd.size()) {
        mean = add_to_sums(of_x.at(begun), gamma.data<T>(), rstds[n], of_dy.at(begun), size, dgamma.data<A>());
        begun.advance(heads);
      }
    }
  });
}

}  // namespace stretto::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace stretto::kernels::cpu {

HWY_EXPORT(rms_norm_forward_simd);
HWY_EXPORT(rms_norm_backward_simd);

void rms_norm_forward(const TokenHeads& x, std::int64_t heads, const Tensor& gamma, double epsilon, const TokenHeads& y,
                      const Tensor& rstd) {
  STRETTO_DISPATCH(rms_norm_forward_simd)(x, heads, gamma, epsilon, y, rstd);
}

void rms_norm_backward(const TokenHeads& x, std::int64_t heads, const Tensor& gamma, const Tensor& rstd,
                       const TokenHeads& dy, const TokenHeads& dx, bool adds, const Tensor& dgamma) {
  const WideGradient wide_dgamma(dgamma);
  STRETTO_DISPATCH(rms_norm_backward_simd)(x, heads, gamma, rstd, dy, dx, adds, wide_dgamma.tensor());
}

}  // namespace stretto::kernels::cpu
#endif
