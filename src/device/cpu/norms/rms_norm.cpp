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
A sum_of_squares(const T* x, std::int64_t size) {
  return sum_over(AccumulatorTag<T>(), x, size, [](auto v) HWY_ATTR { return hn::Mul(v, v); });
}

// Sums of squares become rstd, one by one: numbers that were stored as a vector cannot be loaded singly soon afterwards.
template <class A>
void invert(A* sums, std::int64_t count, std::int64_t size, A epsilon) {
  for (std::int64_t i = 0; i < count; ++i) sums[i] = A{1} / std::sqrt(sums[i] / static_cast<A>(size) + epsilon);
}

// The number of heads that wait for their statistics while as many before them are finished. The sum over a short head takes
// longer than the work on one other head, which can be done meanwhile.
constexpr std::int64_t most_waiting = 8;
constexpr std::int64_t waiting_heads(std::int64_t size) { return size <= 512 ? most_waiting : 1; }

template <class T, class A = Accumulator<T>>
void normalize(const T* x, const T* gamma, A rstd_of_head, std::int64_t size, T* y) {
  const AccumulatorTag<T> d;
  const auto rstd = hn::Set(d, rstd_of_head);
  const auto times = [](auto v, auto factor) HWY_ATTR { return hn::Mul(v, factor); };
  for_each_of<TwoVectors>(d, size, [&](std::int64_t c, auto which) HWY_ATTR {
    const auto normal = each([rstd](auto v) HWY_ATTR { return hn::Mul(v, rstd); }, load(d, x + c, which));
    store_next(d, each(times, rounded<T>(d, normal), load(d, gamma + c, which)), y + c, which);
  });
}

// With normal = x rstd and g = dy gamma: dx (+)= rstd (g - normal mean(g normal)), where dgamma is the sum over heads of dy
// normal. Returns mean(g normal).
template <class T, class A = Accumulator<T>>
A add_to_sums(const T* x, const T* gamma, A rstd_of_head, const T* dy, std::int64_t size, A* dgamma) {
  const AccumulatorTag<T> d;
  const auto rstd = hn::Set(d, rstd_of_head);
  auto sum = hn::Zero(d);
  const auto product = [rstd](auto dy_c, auto v) HWY_ATTR { return hn::Mul(dy_c, hn::Mul(v, rstd)); };
  for_each_of<TwoVectors>(d, size, [&](std::int64_t c, auto which) HWY_ATTR {
    const auto dy_normal = each(product, load_next(d, dy + c, which), load_next(d, x + c, which));
    const auto add = [&sum](auto v, auto gamma_c) HWY_ATTR {
      sum = hn::MulAdd(v, gamma_c, sum);  // gamma is zero in lanes without an element
      return v;
    };
    each(add, dy_normal, load(d, gamma + c, which));
    const auto so_far = load_beside<T>(d, dgamma + c, which);
    store_beside<T>(d, each([](auto a, auto b) HWY_ATTR { return hn::Add(a, b); }, so_far, dy_normal), dgamma + c, which);
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
      store_next(d, each(result, v, dy_c, gamma_c, load_next(d, dx + c, which)), dx + c, which);
    } else {
      store_next(d, each(first, v, dy_c, gamma_c), dx + c, which);
    }
  });
}

}  // namespace

void rms_norm_forward_simd(const TokenHeads& x, std::int64_t heads, const Tensor& gamma, double epsilon, const TokenHeads& y,
                           const Tensor& rstd) {
  with_compute_type(gamma.dtype(), [&]<class T>(T) {
    using A = Accumulator<T>;
    const std::int64_t size = gamma.size();
    const std::int64_t count = rstd.size();
    const std::int64_t waiting = waiting_heads(size);
    const cpu::HeadPlaces<T> from(x, heads, size);
    const cpu::HeadPlaces<T> to(y, heads, size);
    const T* const weight = gamma.data<T>();  // kept: data() checks the type
    A* const rstds = rstd.data<A>();
    cpu::PlaceOfHead begun, finished;
    std::int64_t summed = 0;  // heads before this one have their rstd
    for (std::int64_t n = 0; n < count + waiting; ++n) {
      if (n >= waiting) {
        normalize(from.at(finished), weight, rstds[n - waiting], size, to.at(finished));
        finished.advance(heads);
      }
      if (n >= count) continue;
      rstds[n] = sum_of_squares(from.at(begun), size);
      begun.advance(heads);
      if (n + 1 < summed + waiting && n + 1 < count) continue;
      invert(rstds + summed, n + 1 - summed, size, static_cast<A>(epsilon));
      summed = n + 1;
    }
  });
}

void rms_norm_backward_simd(const TokenHeads& x, std::int64_t heads, const Tensor& gamma, const Tensor& rstd,
                            const TokenHeads& dy, const TokenHeads& dx, bool adds, const Tensor& dgamma) {
  with_compute_type(gamma.dtype(), [&]<class T>(T) {
    using A = Accumulator<T>;
    const std::int64_t size = gamma.size();
    const std::int64_t count = rstd.size();
    const std::int64_t waiting = waiting_heads(size);
    const cpu::HeadPlaces<T> of_x(x, heads, size);
    const cpu::HeadPlaces<T> of_dy(dy, heads, size);
    const cpu::HeadPlaces<T> of_dx(dx, heads, size);
    const T* const weight = gamma.data<T>();  // kept: data() checks the type
    const A* const rstds = rstd.data<A>();
    A* const sums = dgamma.data<A>();
    const auto put = adds ? put_gradient<true, T> : put_gradient<false, T>;
    A means[most_waiting];  // of the heads that wait, in turns
    cpu::PlaceOfHead begun, finished;
    for (std::int64_t n = 0; n < count + waiting; ++n) {
      A& mean = means[n & (waiting - 1)];  // waiting is a power of two
      if (n >= waiting) {
        put(of_x.at(finished), weight, rstds[n - waiting], of_dy.at(finished), mean, size, of_dx.at(finished));
        finished.advance(heads);
      }
      if (n >= count) continue;
      mean = add_to_sums(of_x.at(begun), weight, rstds[n], of_dy.at(begun), size, sums);
      begun.advance(heads);
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
