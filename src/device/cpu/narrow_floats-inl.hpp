// Conversions between narrow floats and vectors of f32, with the same bits as the scalar types' conversions except for the
// payload of NaNs. (Highway's own conversions truncate on some instruction sets.) widen and narrow take and return the
// elements' bits as unsigned integers of the element's size, from_bits and to_bits in lanes of 32 bits.
#if defined(STRETTO_DEVICE_CPU_NARROW_FLOATS_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef STRETTO_DEVICE_CPU_NARROW_FLOATS_INL_HPP
#undef STRETTO_DEVICE_CPU_NARROW_FLOATS_INL_HPP
#else
#define STRETTO_DEVICE_CPU_NARROW_FLOATS_INL_HPP
#endif

#include <hwy/highway.h>

#include <cstdint>
#include <type_traits>

#include "core/narrow_floats.hpp"
#include "device/cpu/cpu_level.hpp"

HWY_BEFORE_NAMESPACE();
namespace stretto::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class T>
struct Type {};
// The unsigned integer as wide as an element of 8 or 16 bits.
template <class T>
using Bits = std::conditional_t<sizeof(T) == 1, std::uint8_t, std::uint16_t>;

template <class D>
HWY_INLINE hn::Vec<D> from_bits(D d, Type<bf16> /*type*/, hn::Vec<hn::Rebind<std::uint32_t, D>> bits) {
  return hn::BitCast(d, hn::ShiftLeft<16>(bits));
}

template <class D, class D32 = hn::Rebind<std::uint32_t, D>>
HWY_INLINE hn::Vec<D32> to_bits(D /*d*/, Type<bf16> /*type*/, hn::Vec<D> v) {
  const D32 d32;
  const auto u = hn::BitCast(d32, v);
  const auto high = hn::ShiftRight<16>(u);
  const auto odd = hn::And(high, hn::Set(d32, 1));
  const auto rounded = hn::ShiftRight<16>(hn::Add(hn::Add(u, hn::Set(d32, 0x7fff)), odd));
  const auto quiet = hn::Or(high, hn::Set(d32, 0x40));
  return hn::IfThenElse(hn::RebindMask(d32, hn::IsNaN(v)), quiet, rounded);
}

template <class D, class T>
HWY_INLINE hn::Vec<D> from_bits(D d, Type<T> /*type*/, hn::Vec<hn::Rebind<std::uint32_t, D>> bits) {
  using Format = FloatFormatBits<T>;
  const hn::Rebind<std::uint32_t, D> d32;
  const hn::Rebind<std::int32_t, D> di32;
  const auto sign = hn::ShiftLeft<Format::sign_shift>(hn::And(bits, hn::Set(d32, Format::sign)));
  const auto magnitude = hn::And(bits, hn::Set(d32, Format::sign - 1));
  const auto normal = hn::Add(hn::ShiftLeft<Format::dropped_bits>(magnitude), hn::Set(d32, Format::rebias));
  const auto special = hn::Or(normal, hn::Set(d32, Format::infinity));
  const auto units = hn::ConvertTo(d, hn::BitCast(di32, magnitude));
  const auto subnormal = hn::BitCast(d32, hn::Mul(units, hn::Set(d, Format::unit)));
  const auto is_subnormal = hn::Lt(magnitude, hn::Set(d32, 1U << Format::mantissa_bits));
  const auto is_number = hn::Lt(magnitude, hn::Set(d32, Format::first_special));
  const auto number = hn::IfThenElse(is_subnormal, subnormal, normal);
  return hn::BitCast(d, hn::Or(sign, hn::IfThenElse(is_number, number, special)));
}

template <class D, class T, class D32 = hn::Rebind<std::uint32_t, D>>
HWY_INLINE hn::Vec<D32> to_bits(D d, Type<T> /*type*/, hn::Vec<D> v) {
  using Format = FloatFormatBits<T>;
  const D32 d32;
  const auto u = hn::BitCast(d32, v);
  const auto magnitude = hn::And(u, hn::Set(d32, 0x7fffffff));
  const auto sign = hn::And(hn::ShiftRight<Format::sign_shift>(u), hn::Set(d32, Format::sign));
  const auto odd = hn::And(hn::ShiftRight<Format::dropped_bits>(magnitude), hn::Set(d32, 1));
  const auto half = hn::Set(d32, (1U << (Format::dropped_bits - 1)) - 1);
  const auto rounded = hn::Add(hn::Add(magnitude, half), odd);
  const auto normal = hn::ShiftRight<Format::dropped_bits>(hn::Sub(rounded, hn::Set(d32, Format::rebias)));
  // The unit in the last place of the rounder is the unit of subnormal numbers, so the addition rounds to it.
  const auto rounder = hn::Set(d, Format::rounder);
  const auto units = hn::BitCast(d32, hn::Add(hn::BitCast(d, magnitude), rounder));
  const auto subnormal = hn::Sub(units, hn::BitCast(d32, rounder));
  const auto small = hn::IfThenElse(hn::Lt(magnitude, hn::Set(d32, Format::first_normal)), subnormal, normal);
  const auto fits = hn::Lt(magnitude, hn::Set(d32, Format::first_too_large_bits));
  const auto number = hn::IfThenElse(fits, small, hn::Set(d32, Format::too_large));
  const auto nan = hn::RebindMask(d32, hn::IsNaN(v));
  return hn::Or(sign, hn::IfThenElse(nan, hn::Set(d32, Format::nan), number));
}

template <class D, class T>
HWY_INLINE hn::Vec<D> widen(D d, Type<T> type, hn::Vec<hn::Rebind<Bits<T>, D>> bits) {
  return from_bits(d, type, hn::PromoteTo(hn::Rebind<std::uint32_t, D>(), bits));
}

template <class D, class T, class Narrow = hn::Rebind<Bits<T>, D>>
HWY_INLINE hn::Vec<Narrow> narrow(D d, Type<T> type, hn::Vec<D> v) {
  return hn::TruncateTo(Narrow(), to_bits(d, type, v));
}

// The same for numbers that are not subnormal in T; those may become zero.
template <class D, class T, class Narrow = hn::Rebind<Bits<T>, D>>
HWY_INLINE hn::Vec<Narrow> narrow_normal(D d, Type<T> type, hn::Vec<D> v) {
  return narrow(d, type, v);
}

// The same for bf16; each lane of 32 bits gets an element of `even` below one of `odd`.
template <class D>
HWY_INLINE hn::Vec<hn::RebindToUnsigned<D>> narrow_normal_pairs(D d, hn::Vec<D> even, hn::Vec<D> odd) {
  return hn::Or(to_bits(d, Type<bf16>{}, even), hn::ShiftLeft<16>(to_bits(d, Type<bf16>{}, odd)));
}

#if HWY_TARGET == HWY_AVX3 && !defined(__clang__)
// One instruction, which makes subnormal numbers zero. In assembly, since no target of Highway 1.0 has it, and GCC does not
// check assembly against the function's target.
HWY_INLINE hn::Vec<hn::ScalableTag<std::uint16_t, -1>> narrow_normal(hn::ScalableTag<float> d, Type<bf16> type,
                                                                     hn::Vec<hn::ScalableTag<float>> v) {
  const hn::ScalableTag<std::uint16_t, -1> narrow_tag;
  if (cpu::rounds_to_bf16) [[likely]] {
    __m256i bits;
    asm("vcvtneps2bf16 %1, %0" : "=v"(bits) : "v"(v.raw));
    return hn::Vec<decltype(narrow_tag)>{bits};
  }
  return hn::TruncateTo(narrow_tag, to_bits(d, type, v));
}

HWY_INLINE hn::Vec<hn::ScalableTag<std::uint32_t>> narrow_normal_pairs(hn::ScalableTag<float> d,
                                                                       hn::Vec<hn::ScalableTag<float>> even,
                                                                       hn::Vec<hn::ScalableTag<float>> odd) {
  if (cpu::rounds_to_bf16) [[likely]] {
    alignas(64) static constexpr std::uint16_t order[] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                          8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    __m512i bits;
    asm("vcvtne2ps2bf16 %2, %1, %0" : "=v"(bits) : "v"(odd.raw), "v"(even.raw));
    return hn::Vec<hn::ScalableTag<std::uint32_t>>{_mm512_permutexvar_epi16(_mm512_load_si512(order), bits)};
  }
  return narrow_normal_pairs<hn::ScalableTag<float>>(d, even, odd);
}

HWY_INLINE hn::Vec<hn::ScalableTag<std::uint16_t, -1>> narrow(hn::ScalableTag<float> d, Type<bf16> type,
                                                              hn::Vec<hn::ScalableTag<float>> v) {
  constexpr int subnormal = 0x20;
  if (_mm512_fpclass_ps_mask(v.raw, subnormal) == 0) [[likely]]
    return narrow_normal(d, type, v);
  return hn::TruncateTo(hn::ScalableTag<std::uint16_t, -1>(), to_bits(d, type, v));
}
#endif

#if HWY_TARGET < HWY_SSE4 && !defined(HWY_DISABLE_F16C)  // AVX2 and wider convert f16 in hardware, and round to even
template <class D>
HWY_INLINE hn::Vec<D> widen(D d, Type<f16> /*type*/, hn::Vec<hn::Rebind<std::uint16_t, D>> bits) {
  return hn::PromoteTo(d, hn::BitCast(hn::Rebind<hwy::float16_t, D>(), bits));
}

template <class D, class Narrow = hn::Rebind<std::uint16_t, D>>
HWY_INLINE hn::Vec<Narrow> narrow(D /*d*/, Type<f16> /*type*/, hn::Vec<D> v) {
  return hn::BitCast(Narrow(), hn::DemoteTo(hn::Rebind<hwy::float16_t, D>(), v));
}
#endif

}  // namespace stretto::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
