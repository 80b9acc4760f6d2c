// Shared by activations. Included once for each instruction set.
#if defined(STRETTO_DEVICE_CPU_ACTIVATIONS_ACTIVATION_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef STRETTO_DEVICE_CPU_ACTIVATIONS_ACTIVATION_INL_HPP
#undef STRETTO_DEVICE_CPU_ACTIVATIONS_ACTIVATION_INL_HPP
#else
#define STRETTO_DEVICE_CPU_ACTIVATIONS_ACTIVATION_INL_HPP
#endif

#include <hwy/highway.h>

#include "device/cpu/exp-inl.hpp"
#include "stretto/dtype.hpp"

HWY_BEFORE_NAMESPACE();
namespace stretto::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// x limited to the bound; NaN may become any number in it.
template <class D>
HWY_INLINE hn::Vec<D> within(D /*d*/, hn::Vec<D> bound, hn::Vec<D> x) {
#if HWY_TARGET == HWY_AVX3
  constexpr int smaller_magnitude = 2;  // of both, with the sign of the first
  if constexpr (sizeof(hn::TFromD<D>) == 4) return hn::Vec<D>{_mm512_range_ps(x.raw, bound.raw, smaller_magnitude)};
#endif
  return at_least(hn::Neg(bound), at_most(bound, x));
}

// x / y for a result that is rounded to T.
template <class T, class D>
HWY_INLINE hn::Vec<D> quotient([[maybe_unused]] D d, hn::Vec<D> x, hn::Vec<D> y) {
#if HWY_TARGET == HWY_AVX3
  if constexpr (std::is_same_v<T, bf16>) return hn::Mul(x, hn::ApproximateReciprocal(y));  // with an error of 2^-14
#endif
  return hn::Div(x, y);
}

}  // namespace stretto::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
