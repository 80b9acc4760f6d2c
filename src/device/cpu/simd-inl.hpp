// Vectors of any element type, for kernels that are written once for all types. A kernel includes this file once for each
// instruction set (Highway). Elements are loaded as vectors of the wider type that the tag d names, computed in that type,
// and rounded once when they are stored.
#if defined(STRETTO_DEVICE_CPU_SIMD_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef STRETTO_DEVICE_CPU_SIMD_INL_HPP
#undef STRETTO_DEVICE_CPU_SIMD_INL_HPP
#else
#define STRETTO_DEVICE_CPU_SIMD_INL_HPP
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "device/cpu/narrow_floats-inl.hpp"
#include "device/kernels/compute_types.hpp"

HWY_BEFORE_NAMESPACE();
namespace stretto::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class T>
using AccumulatorTag = hn::ScalableTag<Accumulator<T>>;

// The vectors of a row of which a matrix product keeps the sums of 4 rows in registers.
constexpr int product_vectors = HWY_TARGET <= HWY_AVX3 || !HWY_ARCH_X86 ? 4 : 2;

// The lanes of a vector that hold elements: all of them, or at the end of an array the first few.
struct AllLanes {};
struct FirstLanes {
  std::size_t count;
};

// ---- loads and stores, from and to any address

// Whole vectors are loaded and stored as bytes: Highway's typed loads may assume that a lane is aligned to its size.
template <class D>
HWY_INLINE hn::Vec<D> load_lanes(D d, const void* from, AllLanes /*all*/ = {}) {
#if HWY_TARGET == HWY_SCALAR  // vectors of one lane have no bytes
  hn::TFromD<D> lane;
  std::memcpy(&lane, from, sizeof(lane));
  return hn::Set(d, lane);
#else
  return hn::BitCast(d, hn::LoadU(hn::Repartition<std::uint8_t, D>(), static_cast<const std::uint8_t*>(from)));
#endif
}

template <class D>
HWY_INLINE void store_lanes(D d, hn::Vec<D> v, void* to, AllLanes /*all*/ = {}) {
#if HWY_TARGET == HWY_SCALAR
  const hn::TFromD<D> lane = hn::GetLane(v);
  std::memcpy(to, &lane, sizeof(lane));
  (void)d;
#else
  const hn::Repartition<std::uint8_t, D> bytes;
  hn::StoreU(hn::BitCast(bytes, v), bytes, static_cast<std::uint8_t*>(to));
  (void)d;
#endif
}

// The end of an array: lanes without an element are loaded as zeros and not stored. Processors without masks for this go
// through a padded copy.
template <class D>
HWY_INLINE hn::Vec<D> load_lanes(D d, const void* from, FirstLanes first) {
  using Lane = hn::TFromD<D>;
#if HWY_TARGET <= HWY_AVX3 && !HWY_MEM_OPS_MIGHT_FAULT
  return hn::MaskedLoad(hn::FirstN(d, first.count), d, static_cast<const Lane*>(from));
#else
  Lane padded[hn::MaxLanes(d)] = {};
  std::memcpy(padded, from, first.count * sizeof(Lane));
  return load_lanes(d, padded);
#endif
}

template <class D>
HWY_INLINE void store_lanes(D d, hn::Vec<D> v, void* to, FirstLanes first) {
  using Lane = hn::TFromD<D>;
#if HWY_TARGET <= HWY_AVX3 && !HWY_MEM_OPS_MIGHT_FAULT
  hn::BlendedStore(v, hn::FirstN(d, first.count), d, static_cast<Lane*>(to));
#else
  Lane padded[hn::MaxLanes(d)];
  store_lanes(d, v, padded);
  std::memcpy(to, padded, first.count * sizeof(Lane));
#endif
}

// Loads elements of T as lanes of d's type. The end of an array takes the same instructions as the middle: the result of an
// element must not depend on where a buffer is cut.
template <class T, class D, class Which = AllLanes>
HWY_INLINE hn::Vec<D> load_as(D d, const void* from, Which which = {}) {
  using Lane = hn::TFromD<D>;
  if constexpr (std::is_same_v<T, Lane>) {
    return load_lanes(d, from, which);
  } else if constexpr (std::is_same_v<double, Lane>) {
    return hn::PromoteTo(d, load_as<T>(hn::Rebind<float, D>(), from, which));
  } else if constexpr (std::is_integral_v<T>) {
    return hn::PromoteTo(d, load_lanes(hn::Rebind<T, D>(), from, which));
  } else {
    return widen(d, Type<T>{}, load_lanes(hn::Rebind<Bits<T>, D>(), from, which));
  }
}

// Floats round, integers wrap.
template <class T, class D, class Which = AllLanes>
HWY_INLINE void store_as(D d, hn::Vec<D> v, void* to, Which which = {}) {
  using Lane = hn::TFromD<D>;
  if constexpr (std::is_same_v<T, Lane>) {
    store_lanes(d, v, to, which);
  } else if constexpr (std::is_same_v<double, Lane>) {
    const hn::Rebind<float, D> f32;
#if HWY_TARGET == HWY_SCALAR  // its DemoteTo makes infinity finite
    store_as<T>(f32, hn::Set(f32, static_cast<float>(hn::GetLane(v))), to, which);
#else
    store_as<T>(f32, hn::DemoteTo(f32, v), to, which);
#endif
  } else {
    const hn::Rebind<Bits<T>, D> bits;
    if constexpr (std::is_integral_v<T>) {
      store_lanes(bits, hn::TruncateTo(bits, hn::BitCast(hn::Rebind<std::uint32_t, D>(), v)), to, which);
    } else {
      store_lanes(bits, narrow(d, Type<T>{}, v), to, which);
    }
  }
}

// The same, with the element type from the pointer.
template <class D, class T, class Which = AllLanes>
HWY_INLINE hn::Vec<D> load(D d, const T* from, Which which = {}) {
  return load_as<T>(d, from, which);
}
template <class D, class T, class Which = AllLanes>
HWY_INLINE void store(D d, hn::Vec<D> v, T* to, Which which = {}) {
  store_as<T>(d, v, to, which);
}

// Stores a result of training, and returns it as load would. A subnormal number of bf16 may become zero, as in the
// processor's products of bf16: a test for one would take a fifth of the time of GELU.
template <class D, class T, class Which = AllLanes>
HWY_INLINE hn::Vec<D> store_result(D d, hn::Vec<D> v, T* to, Which which = {}) {
  if constexpr (std::is_same_v<T, hn::TFromD<D>>) {
    store(d, v, to, which);
    return v;
  } else {
    const auto bits = narrow_normal(d, Type<T>{}, v);
    store_lanes(hn::Rebind<Bits<T>, D>(), bits, to, which);
    return widen(d, Type<T>{}, bits);
  }
}

// ---- two and four vectors at once

// With AVX-512, bf16 is cheaper to widen and to narrow if one vector takes the elements of even, the other those of odd
// index. Other elements are those of two vectors that follow each other.
struct TwoVectors {
  static constexpr std::int64_t vectors = 2;
};
template <class V>
struct Two {
  V first, second;
};

#if HWY_TARGET == HWY_AVX3
template <class D>
HWY_INLINE Two<hn::Vec<D>> widen_pairs(D d, hn::Vec<hn::RebindToUnsigned<D>> pairs) {
  const auto upper = hn::Set(hn::RebindToUnsigned<D>(), 0xffff0000);
  return {hn::BitCast(d, hn::ShiftLeft<16>(pairs)), hn::BitCast(d, hn::And(pairs, upper))};
}
#endif

template <class D, class T>
HWY_INLINE Two<hn::Vec<D>> load(D d, const T* from, TwoVectors /*which*/) {
#if HWY_TARGET == HWY_AVX3
  if constexpr (std::is_same_v<T, bf16> && sizeof(hn::TFromD<D>) == 4)
    return widen_pairs(d, load_lanes(hn::RebindToUnsigned<D>(), from));
#endif
  return {load(d, from), load(d, from + hn::Lanes(d))};
}

template <class D, class T>
HWY_INLINE Two<hn::Vec<D>> store_result(D d, Two<hn::Vec<D>> v, T* to, TwoVectors /*which*/) {
#if HWY_TARGET == HWY_AVX3
  if constexpr (std::is_same_v<T, bf16> && sizeof(hn::TFromD<D>) == 4) {
    const auto pairs = narrow_normal_pairs(d, v.first, v.second);
    store_lanes(hn::RebindToUnsigned<D>(), pairs, to);
    return widen_pairs(d, pairs);
  }
#endif
  return {store_result(d, v.first, to), store_result(d, v.second, to + hn::Lanes(d))};
}

// Loads numbers in the order in which load() has elements of T, for computations with both, and stores them so.
template <class T, class D, class Which, class A = hn::TFromD<D>>
HWY_INLINE hn::Vec<D> load_beside(D d, const A* from, Which which) {
  return load(d, from, which);
}
template <class T, class D, class Which, class A = hn::TFromD<D>>
HWY_INLINE void store_beside(D d, hn::Vec<D> v, A* to, Which which) {
  store(d, v, to, which);
}
template <class T, class D, class A = hn::TFromD<D>>
HWY_INLINE Two<hn::Vec<D>> load_beside(D d, const A* from, TwoVectors which) {
  const auto v = load(d, from, which);
#if HWY_TARGET == HWY_AVX3
  if constexpr (std::is_same_v<T, bf16> && sizeof(A) == 4)
    return {hn::ConcatEven(d, v.second, v.first), hn::ConcatOdd(d, v.second, v.first)};
#endif
  return v;
}
template <class T, class D, class A = hn::TFromD<D>>
HWY_INLINE void store_beside(D d, Two<hn::Vec<D>> v, A* to, TwoVectors /*which*/) {
#if HWY_TARGET == HWY_AVX3
  if constexpr (std::is_same_v<T, bf16> && sizeof(A) == 4) {
    alignas(64) static constexpr std::int32_t lower[] = {0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23};
    alignas(64) static constexpr std::int32_t upper[] = {8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    const Two<hn::Vec<D>> pairs = v;
    v.first.raw = _mm512_permutex2var_ps(pairs.first.raw, _mm512_load_si512(lower), pairs.second.raw);
    v.second.raw = _mm512_permutex2var_ps(pairs.first.raw, _mm512_load_si512(upper), pairs.second.raw);
  }
#endif
  store(d, v.first, to);
  store(d, v.second, to + hn::Lanes(d));
}

// v as elements of T hold it.
template <class T, class D>
HWY_INLINE hn::Vec<D> rounded(D d, hn::Vec<D> v) {
  if constexpr (std::is_same_v<T, hn::TFromD<D>>) {
    return v;
  } else {
    return widen(d, Type<T>{}, narrow_normal(d, Type<T>{}, v));
  }
}
template <class T, class D>
HWY_INLINE Two<hn::Vec<D>> rounded(D d, Two<hn::Vec<D>> v) {
#if HWY_TARGET == HWY_AVX3
  if constexpr (std::is_same_v<T, bf16> && sizeof(hn::TFromD<D>) == 4)
    return widen_pairs(d, narrow_normal_pairs(d, v.first, v.second));
#endif
  return {rounded<T>(d, v.first), rounded<T>(d, v.second)};
}

// For long chains of dependent instructions: four chains are in flight.
struct FourVectors {
  static constexpr std::int64_t vectors = 4;
};
template <class D, class T>
HWY_INLINE Two<Two<hn::Vec<D>>> load(D d, const T* from, FourVectors /*which*/) {
  return {load(d, from, TwoVectors{}), load(d, from + 2 * hn::Lanes(d), TwoVectors{})};
}
template <class D, class T>
HWY_INLINE Two<Two<hn::Vec<D>>> store_result(D d, Two<Two<hn::Vec<D>>> v, T* to, FourVectors /*which*/) {
  return {store_result(d, v.first, to, TwoVectors{}), store_result(d, v.second, to + 2 * hn::Lanes(d), TwoVectors{})};
}

// Loads, or stores, in a kernel that goes through a long array once, and fetches what the array has further on: kernels
// compute so much between two loads that the processor's own fetching comes too late. Beyond the end of an array that is
// harmless.
constexpr std::int64_t fetched_ahead = 3072;  // bytes
template <int for_writing, class Several, class D, class T>
HWY_INLINE void fetch_ahead(D d, const T* from) {
  if constexpr (!std::is_same_v<Several, FirstLanes>) {
    std::int64_t vectors = 1;
    if constexpr (requires { Several::vectors; }) vectors = Several::vectors;
    const auto bytes = vectors * static_cast<std::int64_t>(hn::Lanes(d) * sizeof(T));
    const auto* const ahead = reinterpret_cast<const std::byte*>(from) + fetched_ahead;
    for (std::int64_t line = 0; line < bytes; line += 64) __builtin_prefetch(ahead + line, for_writing);
  }
}
template <class D, class T, class Which>
HWY_INLINE auto load_next(D d, const T* from, Which which) {
  fetch_ahead<0, Which>(d, from);
  return load(d, from, which);
}
template <class D, class V, class T, class Which>
HWY_INLINE auto store_next(D d, V v, T* to, Which which) {
  fetch_ahead<1, Which>(d, to);
  return store_result(d, v, to, which);
}

// Applies f to each vector, together with the vectors in `more` at the same place.
template <class F, class V, class... More>
HWY_INLINE V each(F f, V v, More... more) {
  return f(v, more...);
}
template <class F, class V, class... More>
HWY_INLINE Two<V> each(F f, Two<V> v, More... more) {
  return Two<V>{each(f, v.first, more.first...), each(f, v.second, more.second...)};
}

// ---- loops over an array of count elements

// Calls body(i, lanes) for each vector of elements, which begins at element i.
template <class D, class Body>
HWY_INLINE void for_each_vector(D d, std::int64_t count, Body body) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) body(i, AllLanes{});
  if (i < count) body(i, FirstLanes{static_cast<std::size_t>(count - i)});
}

// The same for several vectors at a time, then for one at a time at the end.
template <class Several, class D, class Body>
HWY_INLINE void for_each_of(D d, std::int64_t count, Body body) {
  const auto step = Several::vectors * static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t i = 0;
  for (; i + step <= count; i += step) body(i, Several{});
  for_each_vector(d, count - i, [&](std::int64_t more, auto which) HWY_ATTR { body(i + more, which); });
}

// Combines the terms of count elements with start, separately in each lane. Four chains hide the latency of combine; the
// chain of an element depends on its number and on count only. A chain is limited to 64 terms before it is added to the
// total, so that the error of a long f32 sum stays small even if vectors have few lanes.
template <class D, class T, class Term, class Combine>
HWY_INLINE hn::Vec<D> fold(D d, const T* x, std::int64_t count, hn::Vec<D> start, Term term, Combine combine) {
  constexpr std::int64_t chain = 64;  // terms
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  auto total = start;
  for (std::int64_t i = 0; i < count;) {
    const std::int64_t end = std::min(count, i + chain * 4 * lanes);
    Two<hn::Vec<D>> ab{start, start};
    Two<hn::Vec<D>> ce{start, start};
    for (; i + 4 * lanes <= end; i += 4 * lanes) {
      ab = each(combine, ab, each(term, load_next(d, x + i, TwoVectors{})));
      ce = each(combine, ce, each(term, load_next(d, x + i + 2 * lanes, TwoVectors{})));
    }
    for (; i + lanes <= end; i += lanes) ab.first = combine(ab.first, term(load(d, x + i)));
    if (i < end) {
      const auto rest = static_cast<std::size_t>(end - i);
      const auto last = term(load(d, x + i, FirstLanes{rest}));
      ab.first = combine(ab.first, hn::IfThenElse(hn::FirstN(d, rest), last, start));
      i = end;
    }
    total = combine(total, combine(combine(ab.first, ab.second), combine(ce.first, ce.second)));
  }
  return total;
}

// The sum of term(vector) over count elements.
template <class D, class T, class Term>
HWY_INLINE hn::TFromD<D> sum_over(D d, const T* x, std::int64_t count, Term term) {
  const auto add = [](auto a, auto b) HWY_ATTR { return hn::Add(a, b); };
  return hn::GetLane(hn::SumOfLanes(d, fold(d, x, count, hn::Zero(d), term, add)));
}

// The order of a and b does not matter, except for the payload of NaNs: ranks that reduce in opposite orders must get the
// same bits. If a or b is NaN, so is the result. +0 is larger than -0: And and Or of the bits yield that for zeros, and
// leave all other equal numbers as they are.
template <class V>
HWY_INLINE V maximum(V a, V b) {
  if constexpr (hwy::IsFloat<hn::TFromV<V>>()) {
    const V larger = hn::IfThenElse(hn::Or(hn::Lt(a, b), hn::IsNaN(b)), b, a);
    return hn::IfThenElse(hn::Eq(a, b), hn::And(a, b), larger);
  } else {
    return hn::Max(a, b);
  }
}
template <class V>
HWY_INLINE V minimum(V a, V b) {
  if constexpr (hwy::IsFloat<hn::TFromV<V>>()) {
    const V smaller = hn::IfThenElse(hn::Or(hn::Lt(b, a), hn::IsNaN(b)), b, a);
    return hn::IfThenElse(hn::Eq(a, b), hn::Or(a, b), smaller);
  } else {
    return hn::Min(a, b);
  }
}

// The largest of count elements; -infinity if count is 0.
template <class T>
HWY_INLINE Accumulator<T> largest(const T* x, std::int64_t count) {
  using A = Accumulator<T>;
  const AccumulatorTag<T> d;
  const auto lowest = hn::Set(d, -std::numeric_limits<A>::infinity());
  const auto v = fold(
      d, x, count, lowest, [](auto element) HWY_ATTR { return element; },
      [](auto a, auto b) HWY_ATTR { return maximum(a, b); });
  if (!hn::AllFalse(d, hn::IsNaN(v))) return std::numeric_limits<A>::quiet_NaN();
  return hn::GetLane(hn::MaxOfLanes(d, v));
}

}  // namespace stretto::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
