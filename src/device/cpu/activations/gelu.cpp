#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/activations/gelu.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h, which includes this file again:
#include "device/cpu/activations/activation-inl.hpp"
#include "device/cpu/cpu_level.hpp"
#include "device/cpu/exp-inl.hpp"
#include "device/cpu/host_kernels.hpp"
#include "device/cpu/simd-inl.hpp"

// With u = sqrt(2/pi) (x + 0.044715 x^3), (1 + tanh u) / 2 = 1 / (1 + exp(-2u)): one exponential, without loss of accuracy
// near zero or where y vanishes. x is bounded: beyond the bound this gate is 0 or 1 in every significant digit, and within
// it exp(-2u) is a normal number.
HWY_BEFORE_NAMESPACE();
namespace stretto::kernels::HWY_NAMESPACE {
namespace {

constexpr double cubic = 0.044715;
constexpr double linear_log2 = 2.3022081981443249;  // 2 sqrt(2/pi) log2(e)
constexpr double linear = 1.5957691216057308;       // 2 sqrt(2/pi)

template <class D>
HWY_INLINE hn::Vec<D> bound(D d) {
  return hn::Set(d, sizeof(hn::TFromD<D>) == 4 ? 10 : 20);
}

// exp(-2u) for x within the bound and its square.
template <class T, class D>
HWY_INLINE Scaled<hn::Vec<D>> exponential(D d, hn::Vec<D> x, hn::Vec<D> square) {
  using A = hn::TFromD<D>;
  const auto factor =
      hn::MulAdd(square, hn::Set(d, static_cast<A>(-linear_log2 * cubic)), hn::Set(d, static_cast<A>(-linear_log2)));
  return scaled_exp2_of_product<T>(d, x, factor);
}

template <class T, class D>
HWY_INLINE hn::Vec<D> gelu(D d, hn::Vec<D> x) {
  const auto bounded = within(d, bound(d), x);
  const auto e = exponential<T>(d, bounded, hn::Mul(bounded, bounded));
  return quotient<T>(d, x, hn::MulAdd(e.mantissa, e.scale, hn::Set(d, hn::TFromD<D>{1})));
}

// With the gate g: y' = g + x g (1 - g) (2u)', and 1 - g = g exp(-2u).
template <class T, class D>
HWY_INLINE hn::Vec<D> gelu_derivative(D d, hn::Vec<D> x) {
  using A = hn::TFromD<D>;
  const auto one = hn::Set(d, A{1});
  const auto bounded = at_least(hn::Neg(bound(d)), at_most(bound(d), x));  // NaN stays
  const auto square = hn::Mul(bounded, bounded);
  const auto scaled = exponential<T>(d, bounded, square);
  const auto e = hn::Mul(scaled.mantissa, scaled.scale);
  const auto g = quotient<T>(d, one, hn::Add(one, e));
  const auto slope = hn::MulAdd(square, hn::Set(d, static_cast<A>(3 * linear * cubic)), hn::Set(d, static_cast<A>(linear)));
  const auto x_slope_e = hn::Mul(hn::Mul(bounded, slope), hn::Mul(e, g));
  return hn::MulAdd(x_slope_e, g, g);
}

template <class T>
void forward(const T* x, T* y, std::int64_t count) {
  const AccumulatorTag<T> d;
  for_each_of<FourVectors>(d, count, [&](std::int64_t i, auto which) HWY_ATTR {
    const auto result = each([d](auto v) HWY_ATTR { return gelu<T>(d, v); }, load_next(d, x + i, which));
    store_next(d, result, y + i, which);
  });
}

template <class T>
void backward(const T* x, const T* dy, T* dx, std::int64_t count) {
  const AccumulatorTag<T> d;
  for_each_of<FourVectors>(d, count, [&](std::int64_t i, auto which) HWY_ATTR {
    const auto result = each([d](auto v, auto dv) HWY_ATTR { return hn::Mul(dv, gelu_derivative<T>(d, v)); },
                             load_next(d, x + i, which), load_next(d, dy + i, which));
    store_next(d, result, dx + i, which);
  });
}

template <class T>
void forward_with_bias(T* x, const T* bias, T* y, std::int64_t rows, std::int64_t columns) {
  const AccumulatorTag<T> d;
  // With AVX-512, rounding to bf16 asks whether the processor has an instruction for it, and compilers do not move others
  // across that. So GELU reads the row again, from the cache.
  constexpr bool rounds = !std::is_same_v<T, Accumulator<T>>;
  for (std::int64_t row = 0; row < rows; ++row, x += columns, y += columns) {
    for_each_of<FourVectors>(d, columns, [&](std::int64_t c, auto which) HWY_ATTR {
      const auto sum =
          each([](auto v, auto b) HWY_ATTR { return hn::Add(v, b); }, load(d, x + c, which), load(d, bias + c, which));
      const auto rounded = store_result(d, sum, x + c, which);  // which backward will read
      if constexpr (!rounds) store_next(d, each([d](auto v) HWY_ATTR { return gelu<T>(d, v); }, rounded), y + c, which);
    });
    if constexpr (rounds) forward(x, y, columns);
  }
}

}  // namespace

void gelu_forward_simd(const Tensor& x, const Tensor& y) {
  with_compute_type(x.dtype(), [&]<class T>(T) { forward(x.data<T>(), y.data<T>(), x.size()); });
}

void gelu_backward_simd(const Tensor& x, const Tensor& dy, const Tensor& dx) {
  with_compute_type(x.dtype(), [&]<class T>(T) { backward(x.data<T>(), dy.data<T>(), dx.data<T>(), x.size()); });
}

void add_bias_gelu_simd(const Tensor& x, const Tensor& bias, const Tensor& y) {
  with_compute_type(x.dtype(),
                    [&]<class T>(T) { forward_with_bias(x.data<T>(), bias.data<T>(), y.data<T>(), x.rows(), x.columns()); });
}

}  // namespace stretto::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace stretto::kernels::cpu {

HWY_EXPORT(gelu_forward_simd);
HWY_EXPORT(gelu_backward_simd);
HWY_EXPORT(add_bias_gelu_simd);

void gelu_forward(const Tensor& x, const Tensor& y) { STRETTO_DISPATCH(gelu_forward_simd)(x, y); }

void gelu_backward(const Tensor& x, const Tensor& dy, const Tensor& dx) { STRETTO_DISPATCH(gelu_backward_simd)(x, dy, dx); }

void add_bias_gelu(const Tensor& x, const Tensor& bias, const Tensor& y) {
  STRETTO_DISPATCH(add_bias_gelu_simd)(x, bias, y);
}

}  // namespace stretto::kernels::cpu
#endif
