// Vectors of any element type, for the kernels that are written once for all of them. A kernel includes this file once for
// each instruction set (Highway). Elements are loaded as vectors of a wider type chosen by the tag d, computed there, and
// rounded once when they are stored.
#if defined(STRETTO_DEVICE_CPU_SIMD_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef STRETTO_DEVICE_CPU_SIMD_INL_HPP
#undef STRETTO_DEVICE_CPU_SIMD_INL_HPP
#else
#define STRETTO_DEVICE_CPU_SIMD_INL_HPP
#endif

#include <hwy/highway.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "device/cpu/arguments.hpp"

HWY_BEFORE_NAMESPACE();
namespace stretto::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class T>
using AccumulatorTag = hn::ScalableTag<Accumulator<T>>;

// Which lanes of a vector hold elements: all, or at the end of an array the first few.
struct AllLanes {};
struct FirstLanes {
  std::size_t count;
};

// ---- 16-bit types. Rounding is integer arithmetic that repeats the scalar types bit for bit: Highway's own truncates.

template <class D>
HWY_INLINE hn::Vec<D> from_bits(D d, const bf16* /*type*/, hn::Vec<hn::Rebind<std::uint32_t, D>> bits) {
  return hn::BitCast(d, hn::ShiftLeft<16>(bits));
}

template <class D, class D32 = hn::Rebind<std::uint32_t, D>>
HWY_INLINE hn::Vec<D32> to_bits(D /*d*/, const bf16* /*type*/, hn::Vec<D> v) {
  const D32 d32;
  const auto u = hn::BitCast(d32, v);
  const auto high = hn::ShiftRight<16>(u);
  const auto odd = hn::And(high, hn::Set(d32, 1));
  const auto rounded = hn::ShiftRight<16>(hn::Add(hn::Add(u, hn::Set(d32, 0x7fff)), odd));
  const auto quiet = hn::Or(high, hn::Set(d32, 0x40));
  return hn::IfThenElse(hn::RebindMask(d32, hn::IsNaN(v)), quiet, rounded);
}

template <class D>
HWY_INLINE hn::Vec<D> from_bits(D d, const f16* /*type*/, hn::Vec<hn::Rebind<std::uint32_t, D>> bits) {
  const hn::Rebind<std::uint32_t, D> d32;
  const hn::Rebind<std::int32_t, D> di32;
  const auto sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(d32, 0x8000)));
  const auto magnitude = hn::And(bits, hn::Set(d32, 0x7fff));
  const auto rebias = hn::Set(d32, 112U << 23);
  const auto normal = hn::Add(hn::ShiftLeft<13>(magnitude), rebias);
  const auto special = hn::Add(normal, rebias);  // infinity and NaN have the largest exponent of either type
  const auto subnormal = hn::BitCast(d32, hn::Mul(hn::ConvertTo(d, hn::BitCast(di32, magnitude)), hn::Set(d, 0x1p-24F)));
  const auto finite = hn::IfThenElse(hn::Lt(magnitude, hn::Set(d32, 0x400)), subnormal, normal);
  return hn::BitCast(d, hn::Or(sign, hn::IfThenElse(hn::Lt(magnitude, hn::Set(d32, 0x7c00)), finite, special)));
}

template <class D, class D32 = hn::Rebind<std::uint32_t, D>>
HWY_INLINE hn::Vec<D32> to_bits(D d, const f16* /*type*/, hn::Vec<D> v) {
  const D32 d32;
  const auto u = hn::BitCast(d32, v);
  const auto magnitude = hn::And(u, hn::Set(d32, 0x7fffffff));
  const auto sign = hn::And(hn::ShiftRight<16>(u), hn::Set(d32, 0x8000));
  const auto odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(d32, 1));
  const auto rounded = hn::Add(hn::Add(magnitude, hn::Set(d32, 0xfff)), odd);
  const auto normal = hn::ShiftRight<13>(hn::Sub(rounded, hn::Set(d32, 112U << 23)));
  // The unit in the last place of 1/2 is that of subnormal f16: this addition rounds to it.
  const auto half = hn::Set(d, 0.5F);
  const auto subnormal = hn::Sub(hn::BitCast(d32, hn::Add(hn::BitCast(d, magnitude), half)), hn::BitCast(d32, half));
  const auto small = hn::IfThenElse(hn::Lt(magnitude, hn::Set(d32, 0x38800000)), subnormal, normal);
  const auto infinity = hn::Set(d32, 0x7c00);
  const auto number = hn::IfThenElse(hn::Lt(magnitude, hn::Set(d32, 0x477ff000)), small, infinity);
  const auto nan = hn::RebindMask(d32, hn::IsNaN(v));
  return hn::Or(sign, hn::IfThenElse(nan, hn::Set(d32, 0x7e00), number));
}

// ---- loads and stores

template <class D, class T>
HWY_INLINE hn::Vec<D> load(D d, const T* from, AllLanes all = {}) {
  if constexpr (std::is_same_v<T, hn::TFromD<D>>) {
    return hn::LoadU(d, from);
  } else if constexpr (std::is_same_v<double, hn::TFromD<D>>) {
    return hn::PromoteTo(d, load(hn::Rebind<float, D>(), from, all));
  } else {
    static_assert(sizeof(T) == 2, "what is loaded fits into the vector's type");
    const hn::Rebind<std::uint16_t, D> d16;
    const hn::Rebind<std::uint32_t, D> d32;
    return from_bits(d, from, hn::PromoteTo(d32, hn::LoadU(d16, &from->bits)));
  }
}

template <class D, class T>
HWY_INLINE void store(D d, hn::Vec<D> v, T* to, AllLanes all = {}) {
  if constexpr (std::is_same_v<T, hn::TFromD<D>>) {
    hn::StoreU(v, d, to);
  } else if constexpr (std::is_same_v<double, hn::TFromD<D>>) {
    const hn::Rebind<float, D> narrow;
#if HWY_TARGET == HWY_SCALAR  // whose DemoteTo makes infinity finite
    store(narrow, hn::Set(narrow, static_cast<float>(hn::GetLane(v))), to, all);
#else
    store(narrow, hn::DemoteTo(narrow, v), to, all);
#endif
  } else {
    static_assert(sizeof(T) == 2, "what is stored is no wider than the vector's type");
    const hn::Rebind<std::uint16_t, D> d16;
    hn::StoreU(hn::TruncateTo(d16, to_bits(d, to, v)), d16, &to->bits);
  }
}

// The end of an array takes the same instructions as its middle, on a padded copy: what becomes of an element must not
// depend on where a buffer was cut. The lanes that hold no element are zero.
template <class D, class T>
HWY_INLINE hn::Vec<D> load(D d, const T* from, FirstLanes first) {
  T padded[hn::MaxLanes(d)] = {};
  std::memcpy(padded, from, first.count * sizeof(T));
  return load(d, padded);
}

template <class D, class T>
HWY_INLINE void store(D d, hn::Vec<D> v, T* to, FirstLanes first) {
  T padded[hn::MaxLanes(d)];
  store(d, v, padded);
  std::memcpy(to, padded, first.count * sizeof(T));
}

// v as it will be when it was stored as T and loaded again.
template <class T, class D>
HWY_INLINE hn::Vec<D> rounded_to(D d, hn::Vec<D> v) {
  if constexpr (sizeof(T) == 2) {
    return from_bits(d, static_cast<const T*>(nullptr), to_bits(d, static_cast<const T*>(nullptr), v));
  } else {
    return v;
  }
}

// ---- walks over an array of count elements

// body(i, lanes) for the elements from i on that share a vector.
template <class D, class Body>
HWY_INLINE void for_each_vector(D d, std::int64_t count, Body body) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) body(i, AllLanes{});
  if (i < count) body(i, FirstLanes{static_cast<std::size_t>(count - i)});
}

// All of term(i, lanes) combined with start, in each lane on its own. Four chains hide the latency of combine; which
// elements go into which chain depends on count alone.
template <class D, class Term, class Combine>
HWY_INLINE hn::Vec<D> fold(D d, std::int64_t count, hn::Vec<D> start, Term term, Combine combine) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  auto a = start;
  auto b = start;
  auto c = start;
  auto e = start;
  std::int64_t i = 0;
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    a = combine(a, term(i, AllLanes{}));
    b = combine(b, term(i + lanes, AllLanes{}));
    c = combine(c, term(i + 2 * lanes, AllLanes{}));
    e = combine(e, term(i + 3 * lanes, AllLanes{}));
  }
  for (; i + lanes <= count; i += lanes) a = combine(a, term(i, AllLanes{}));
  if (i < count) {
    const auto rest = static_cast<std::size_t>(count - i);
    a = combine(a, hn::IfThenElse(hn::FirstN(d, rest), term(i, FirstLanes{rest}), start));
  }
  return combine(combine(a, b), combine(c, e));
}

template <class D, class Term>
HWY_INLINE hn::TFromD<D> sum_over(D d, std::int64_t count, Term term) {
  const auto add = [](auto a, auto b) HWY_ATTR { return hn::Add(a, b); };
  return hn::GetLane(hn::SumOfLanes(d, fold(d, count, hn::Zero(d), term, add)));
}

// A NaN on either side wins; of equal zeros the first does, whatever their signs.
template <class V>
HWY_INLINE V maximum(V a, V b) {
  return hn::IfThenElse(hn::Or(hn::Lt(a, b), hn::IsNaN(b)), b, a);
}
template <class V>
HWY_INLINE V minimum(V a, V b) {
  return hn::IfThenElse(hn::Or(hn::Lt(b, a), hn::IsNaN(b)), b, a);
}

// The largest of count elements, -infinity of none.
template <class T>
HWY_INLINE Accumulator<T> largest(const T* x, std::int64_t count) {
  using A = Accumulator<T>;
  const AccumulatorTag<T> d;
  const auto lowest = hn::Set(d, -std::numeric_limits<A>::infinity());
  const auto v = fold(
      d, count, lowest, [&](std::int64_t i, auto lanes) HWY_ATTR { return load(d, x + i, lanes); },
      [](auto a, auto b) HWY_ATTR { return maximum(a, b); });
  if (!hn::AllFalse(d, hn::IsNaN(v))) return std::numeric_limits<A>::quiet_NaN();
  return hn::GetLane(hn::MaxOfLanes(d, v));
}

}  // namespace stretto::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
