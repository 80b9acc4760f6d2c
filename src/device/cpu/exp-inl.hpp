// Powers of two and e for vectors of f32 and f64. Included once for each instruction set.
#if defined(STRETTO_DEVICE_CPU_EXP_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef STRETTO_DEVICE_CPU_EXP_INL_HPP
#undef STRETTO_DEVICE_CPU_EXP_INL_HPP
#else
#define STRETTO_DEVICE_CPU_EXP_INL_HPP
#endif

#include <hwy/highway.h>

#include <iterator>
#include <type_traits>

#include "stretto/dtype.hpp"

HWY_BEFORE_NAMESPACE();
namespace stretto::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class T>
struct ExpConstants;

template <>
struct ExpConstants<float> {
  static constexpr int mantissa_bits = 23;
  static constexpr float exponent_bias = 127;
  static constexpr float round = 0x1.8p23F;      // numbers this large have no fraction: adding this rounds to an integer
  static constexpr float log2e = 0x1.715476p0F;  // log2(e), rounded to f32
  static constexpr float log2e_rest = 1.92596299e-8F;  // the rest of log2(e)
  static constexpr float lowest = -87.0F;              // exp of smaller numbers is zero
  static constexpr float highest = 88.0F;              // exp of larger numbers is exp of this
  static constexpr float splitter = 0x1p12F + 1;       // cuts a mantissa into halves
  // (2^f - 1) / f for |f| <= 1/2, interpolated at Chebyshev nodes; the relative error of 2^f is 5e-9.
  static constexpr float polynomial[] = {0.693147188F,   0.240226508F,   0.0555035711F,
                                         0.00961808256F, 0.00133908634F, 0.000154531629F};
};

template <>
struct ExpConstants<double> {
  static constexpr int mantissa_bits = 52;
  static constexpr double exponent_bias = 1023;
  static constexpr double round = 0x1.8p52;
  static constexpr double log2e = 1.4426950408889634;
  static constexpr double log2e_rest = 2.0355273740931033e-17;
  static constexpr double lowest = -708.0;
  static constexpr double highest = 709.0;
  static constexpr double splitter = 0x1p27 + 1;
  // The same polynomial for f64; the relative error is 1e-19.
  static constexpr double polynomial[] = {0.6931471805599453,     0.24022650695910072,    0.055504108664821625,
                                          0.00961812910762848,    0.001333355814640647,   0.00015403530393370734,
                                          1.5252733841556773e-05, 1.3215486808705563e-06, 1.0178057087733941e-07,
                                          7.0548973041554995e-09, 4.4558179083360645e-10, 2.5729324177362305e-11};
};

// 2^f for |f| <= 1/2.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp2_of_fraction(D d, V f) {
  using T = hn::TFromD<D>;
  using C = ExpConstants<T>;
  // Evaluated in pairs: the loops that call this are limited by the length of their dependency chains.
  const auto pair = [d, f](int i)
                        HWY_ATTR { return hn::MulAdd(f, hn::Set(d, C::polynomial[i + 1]), hn::Set(d, C::polynomial[i])); };
  const auto square = hn::Mul(f, f);
  constexpr int last = static_cast<int>(std::size(C::polynomial)) - 2;
  auto p = pair(last);
  for (int i = last - 2; i >= 0; i -= 2) p = hn::MulAdd(p, square, pair(i));
  return hn::MulAdd(p, f, hn::Set(d, T{1}));
}

// The same for results that are rounded to bf16, with a relative error of 8e-5.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp2_of_fraction_for_bf16(D d, V f) {
  auto p = hn::MulAdd(f, hn::Set(d, 0.0551716691F), hn::Set(d, 0.242611122F));
  p = hn::MulAdd(p, f, hn::Set(d, 0.693260985F));
  return hn::MulAdd(p, f, hn::Set(d, 0.999928074F));
}

// 2^(n + f) for |f| <= 1/2, where rounded is round + n. The result must be a normal number.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp2_of_parts(D d, V rounded, V f) {
  const hn::RebindToUnsigned<D> bits;
  // The low bits of `rounded` are n; the shift moves them to the exponent and drops all other bits.
  const auto exponent = hn::ShiftLeft<ExpConstants<hn::TFromD<D>>::mantissa_bits>(hn::BitCast(bits, rounded));
  return hn::BitCast(d, hn::Add(hn::BitCast(bits, exp2_of_fraction(d, f)), exponent));
}

// The smaller of bound and x, or the larger; NaN if x is NaN.
template <class V>
HWY_INLINE V at_most(V bound, V x) {
#if HWY_TARGET == HWY_SCALAR  // Min and Max return the argument that is a number
  return hn::IfThenElse(hn::Lt(bound, x), bound, x);
#else  // Min and Max return their second argument
  return hn::Min(bound, x);
#endif
}
template <class V>
HWY_INLINE V at_least(V bound, V x) {
#if HWY_TARGET == HWY_SCALAR
  return hn::IfThenElse(hn::Lt(x, bound), bound, x);
#else
  return hn::Max(bound, x);
#endif
}

// a b - n for the integer n nearest to a b, rounded once: a plain product loses the more digits of it the larger a b is.
// Without fused operations, the product's rounding error is computed from the halves of a and b (Dekker 1971).
template <class D, class V = hn::Vec<D>>
HWY_INLINE V product_minus([[maybe_unused]] D d, V a, V b, V n) {
#if HWY_NATIVE_FMA
  return hn::MulSub(a, b, n);
#else
  const auto splitter = hn::Set(d, ExpConstants<hn::TFromD<D>>::splitter);
  const auto upper = [splitter](V v) HWY_ATTR {
    const auto scaled = hn::Mul(v, splitter);
    return hn::Sub(scaled, hn::Sub(scaled, v));
  };
  const auto product = hn::Mul(a, b);
  const auto a_upper = upper(a);
  const auto b_upper = upper(b);
  const auto a_lower = hn::Sub(a, a_upper);
  const auto b_lower = hn::Sub(b, b_upper);
  const auto large = hn::Sub(hn::Mul(a_upper, b_upper), product);
  const auto middle = hn::Add(hn::Add(large, hn::Mul(a_upper, b_lower)), hn::Mul(a_lower, b_upper));
  const auto error = hn::Add(middle, hn::Mul(a_lower, b_lower));
  return hn::Add(hn::Sub(product, n), error);
#endif
}

// 2^(a b); the result must be a normal number.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp2_of_product(D d, V a, V b) {
  const auto round = hn::Set(d, ExpConstants<hn::TFromD<D>>::round);
  const auto rounded = hn::MulAdd(a, b, round);
  return exp2_of_parts(d, rounded, product_minus(d, a, b, hn::Sub(rounded, round)));
}

// mantissa * scale, where scale is a power of two.
template <class V>
struct Scaled {
  V mantissa, scale;
};

// 2^(a b) for results that are rounded to T; it must be a normal number.
template <class T, class D, class V = hn::Vec<D>>
HWY_INLINE Scaled<V> scaled_exp2_of_product(D d, V a, V b) {
  using C = ExpConstants<hn::TFromD<D>>;
  const hn::RebindToUnsigned<D> bits;
  const auto round = hn::Set(d, C::round + C::exponent_bias);  // the low bits of `rounded` are the exponent's
  const auto rounded = hn::MulAdd(a, b, round);
  const auto f = product_minus(d, a, b, hn::Sub(rounded, round));
  const auto scale = hn::BitCast(d, hn::ShiftLeft<C::mantissa_bits>(hn::BitCast(bits, rounded)));
  if constexpr (std::is_same_v<T, bf16>) return {exp2_of_fraction_for_bf16(d, f), scale};
  return {exp2_of_fraction(d, f), scale};
}

// e^x. Subnormal results are zero, results near overflow stay finite, and NaN stays NaN.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp(D d, V x) {
  using C = ExpConstants<hn::TFromD<D>>;
  const auto round = hn::Set(d, C::round);
  const auto log2e = hn::Set(d, C::log2e);
  const auto capped = at_most(hn::Set(d, C::highest), x);
  const auto rounded = hn::MulAdd(capped, log2e, round);
  const auto n = hn::Sub(rounded, round);
  const auto f = hn::MulAdd(capped, hn::Set(d, C::log2e_rest), product_minus(d, capped, log2e, n));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, C::lowest)), exp2_of_parts(d, rounded, f));
}

}  // namespace stretto::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
