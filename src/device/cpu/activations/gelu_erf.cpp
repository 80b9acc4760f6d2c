#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/activations/gelu_erf.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h, which includes this file again:
#include "device/cpu/activations/activation-inl.hpp"
#include "device/cpu/cpu_level.hpp"
#include "device/cpu/exp-inl.hpp"
#include "device/cpu/host_kernels.hpp"
#include "device/cpu/simd-inl.hpp"

// x Phi(x), where Phi(-a) = exp(-a^2 / 2) erfcx(a / sqrt(2)) / 2 for a >= 0: the scaled complementary error function is
// smooth and decays as 1 / a, so that nothing is lost where Phi vanishes. (1 + 2z) erfcx(z) is a polynomial in (z - k) /
// (z + k), as Shepherd and Laframboise (1981) have it.
HWY_BEFORE_NAMESPACE();
namespace stretto::kernels::HWY_NAMESPACE {
namespace {

template <class A>
struct ErfcxConstants;
template <>
struct ErfcxConstants<float> {
  static constexpr float bound =
      13;  // of |x|: beyond it Phi is 0 or 1 in every digit, and within it the exponential is normal
  static constexpr float k = 2;
  // Interpolated at Chebyshev nodes; the relative error is 2e-8.
  static constexpr float polynomial[] = {1.27697838F,     -0.0927639037F, -0.166030408F,  0.164053972F,    -0.0542152967F,
                                         -0.00805629396F, 0.00867137679F, 0.00132356488F, -0.00127617846F, -0.00042947953F};
};
template <>
struct ErfcxConstants<double> {
  static constexpr double bound = 37;
  static constexpr double k = 3.75;
  // The same for f64; the relative error is 2e-17.
  static constexpr double polynomial[] = {
      1.2375126308378275,     -0.1402405985855467,    0.003585415485463297,    0.08227673849011403,
      -0.10880393014168528,   0.0923043211614774,     -0.058693398590904264,   0.02836227740102912,
      -0.009746579546764526,  0.001755626014932829,   0.00029371362337406084,  -0.00029015496980854525,
      5.164908072285061e-05,  2.2387333351774618e-05, -1.1443386715647735e-05, -9.804551146365724e-07,
      1.7486585524429924e-06, -4.760016599968858e-08, -2.529623443943851e-07,  1.5447520210241472e-08,
      3.285862244913645e-08,  -6.593472109737e-10,    -2.337706312522679e-09};
};

constexpr double half_log2e = 0.72134752044448170;
constexpr double root_half = 0.70710678118654752;
constexpr double root_2pi_inverse = 0.39894228040143268;

template <class V>
struct Normal {
  V below;    // Phi(x)
  V density;  // Phi'(x)
};

// For x within the bound.
template <class T, class D, class V = hn::Vec<D>>
HWY_INLINE Normal<V> normal(D d, V x) {
  using A = hn::TFromD<D>;
  using C = ErfcxConstants<A>;
  const auto number = [d](double value) HWY_ATTR { return hn::Set(d, static_cast<A>(value)); };
  const auto scaled = scaled_exp2_of_product<T>(d, x, hn::Mul(x, number(-half_log2e)));
  const auto e = hn::Mul(scaled.mantissa, scaled.scale);
  const auto z = hn::Mul(hn::Abs(x), number(root_half));
  const auto above = hn::Add(z, number(C::k));
  const auto slope = hn::MulAdd(z, number(2), number(1));
  const auto inverse = hn::Div(number(1), hn::Mul(above, slope));
  const auto t = hn::Mul(hn::Mul(hn::Sub(z, number(C::k)), slope), inverse);
  constexpr int last = static_cast<int>(std::size(C::polynomial)) - 1;
  auto p = hn::Set(d, C::polynomial[last]);
  for (int i = last - 1; i >= 0; --i) p = hn::MulAdd(p, t, hn::Set(d, C::polynomial[i]));
  const auto outer = hn::Mul(hn::Mul(e, hn::Mul(p, number(0.5))), hn::Mul(above, inverse));
  const auto below = hn::IfThenElse(hn::Lt(x, hn::Zero(d)), outer, hn::Sub(number(1), outer));
  return {below, hn::Mul(e, number(root_2pi_inverse))};
}

template <class D>
HWY_INLINE hn::Vec<D> bound(D d) {
  return hn::Set(d, ErfcxConstants<hn::TFromD<D>>::bound);
}

template <class T>
void forward(const T* x, T* y, std::int64_t count) {
  const AccumulatorTag<T> d;
  const auto gelu = [d](auto v) HWY_ATTR { return hn::Mul(v, normal<T>(d, within(d, bound(d), v)).below); };
  for_each_of<FourVectors>(d, count, [&](std::int64_t i, auto which) HWY_ATTR {
    store_next(d, each(gelu, load_next(d, x + i, which)), y + i, which);
  });
}

template <class T>
void backward(const T* x, const T* dy, T* dx, std::int64_t count) {
  const AccumulatorTag<T> d;
  const auto gradient = [d](auto v, auto dv) HWY_ATTR {
    const auto bounded = at_least(hn::Neg(bound(d)), at_most(bound(d), v));  // NaN stays
    const auto of = normal<T>(d, bounded);
    return hn::Mul(dv, hn::MulAdd(bounded, of.density, of.below));
  };
  for_each_of<FourVectors>(d, count, [&](std::int64_t i, auto which) HWY_ATTR {
    store_next(d, each(gradient, load_next(d, x + i, which), load_next(d, dy + i, which)), dx + i, which);
  });
}

}  // namespace

void gelu_erf_forward_simd(const Tensor& x, const Tensor& y) {
  with_compute_type(x.dtype(), [&]<class T>(T) { forward(x.data<T>(), y.data<T>(), x.size()); });
}

void gelu_erf_backward_simd(const Tensor& x, const Tensor& dy, const Tensor& dx) {
  with_compute_type(x.dtype(), [&]<class T>(T) { backward(x.data<T>(), dy.data<T>(), dx.data<T>(), x.size()); });
}

}  // namespace stretto::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace stretto::kernels::cpu {

HWY_EXPORT(gelu_erf_forward_simd);
HWY_EXPORT(gelu_erf_backward_simd);

void gelu_erf_forward(const Tensor& x, const Tensor& y) { STRETTO_DISPATCH(gelu_erf_forward_simd)(x, y); }

void gelu_erf_backward(const Tensor& x, const Tensor& dy, const Tensor& dx) {
  STRETTO_DISPATCH(gelu_erf_backward_simd)(x, dy, dx);
}

}  // namespace stretto::kernels::cpu
#endif
