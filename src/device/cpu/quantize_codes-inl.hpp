// Codes of a whole group as vectors of f32, for quantize.cpp: written and read four vectors ("a chunk") at a time. A kernel
// includes this file once for each instruction set (Highway).
#if defined(STRETTO_DEVICE_CPU_QUANTIZE_CODES_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef STRETTO_DEVICE_CPU_QUANTIZE_CODES_INL_HPP
#undef STRETTO_DEVICE_CPU_QUANTIZE_CODES_INL_HPP
#else
#define STRETTO_DEVICE_CPU_QUANTIZE_CODES_INL_HPP
#endif

#include "device/cpu/quantize_group.hpp"
#include "device/cpu/simd-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace stretto::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using GroupTag = hn::CappedTag<float, 16>;
using GroupBits = hn::Rebind<std::uint32_t, GroupTag>;
using Floats = hn::Vec<GroupTag>;
using Words = hn::Vec<GroupBits>;

// Where the vectors of a chunk lie in the group: next to each other, but in int4 the last two in the group's second half,
// whose codes share bytes with the first.
template <QuantizedFormat F>
struct Chunks {
  static constexpr std::int64_t lanes = hn::MaxLanes(GroupTag());
  static constexpr std::int64_t half = F == QuantizedFormat::int4 ? group_elements(F) / 2 : 2 * lanes;
  static constexpr std::int64_t count = group_elements(F) / (4 * lanes);
  static constexpr std::int64_t at(std::int64_t chunk, int vector) {
    return chunk * (F == QuantizedFormat::int4 ? 2 : 4) * lanes + (vector / 2) * half + (vector % 2) * lanes;
  }
};

// ---- elements

// A number of a magnitude whose rounding to T is one, too: the rounding without a look at what is none.
template <class T>
HWY_INLINE void store_number(Floats v, void* to) {
  constexpr GroupTag d;
  if constexpr (std::is_same_v<T, bf16>) {
    constexpr GroupBits bits;
    constexpr hn::Rebind<std::uint16_t, GroupTag> d16;
    const auto u = hn::BitCast(bits, v);
    const auto odd = hn::And(hn::ShiftRight<16>(u), hn::Set(bits, 1));
    const auto rounded = hn::Add(hn::Add(u, hn::Set(bits, 0x7fff)), odd);
    store_lanes(d16, hn::TruncateTo(d16, hn::ShiftRight<16>(rounded)), to);
  } else {
    store_as<T>(d, v, to);
  }
}

// ---- reading

HWY_INLINE Floats from_signed(hn::Vec<hn::Rebind<std::int32_t, GroupTag>> code) { return hn::ConvertTo(GroupTag(), code); }

template <QuantizedFormat F>
HWY_INLINE void decode(const std::uint8_t* codes, std::int64_t chunk, Floats& v0, Floats& v1, Floats& v2, Floats& v3) {
  constexpr GroupTag d;
  constexpr hn::Rebind<std::int8_t, GroupTag> d8;
  constexpr hn::Rebind<std::int32_t, GroupTag> d32;
  constexpr std::int64_t lanes = Chunks<F>::lanes;
  if constexpr (F == QuantizedFormat::int8) {
    const std::uint8_t* const from = codes + chunk * 4 * lanes;
    v0 = from_signed(hn::PromoteTo(d32, load_lanes(d8, from)));
    v1 = from_signed(hn::PromoteTo(d32, load_lanes(d8, from + lanes)));
    v2 = from_signed(hn::PromoteTo(d32, load_lanes(d8, from + 2 * lanes)));
    v3 = from_signed(hn::PromoteTo(d32, load_lanes(d8, from + 3 * lanes)));
  } else if constexpr (F == QuantizedFormat::fp8) {
    const std::uint8_t* const from = codes + chunk * 4 * lanes;
    v0 = load_as<f8e4m3>(d, from);
    v1 = load_as<f8e4m3>(d, from + lanes);
    v2 = load_as<f8e4m3>(d, from + 2 * lanes);
    v3 = load_as<f8e4m3>(d, from + 3 * lanes);
  } else if constexpr (F == QuantizedFormat::int4) {
    const std::uint8_t* const from = codes + chunk * 2 * lanes;
    const auto split = [&](Floats both, Floats& low, Floats& high) HWY_ATTR {
      const auto rounder = hn::Set(d, integer_rounder);
      high = hn::Sub(hn::MulAdd(both, hn::Set(d, 1.0F / 16), rounder), rounder);
      low = hn::NegMulAdd(high, hn::Set(d, 16), both);
    };
    split(from_signed(hn::PromoteTo(d32, load_lanes(d8, from))), v0, v2);
    split(from_signed(hn::PromoteTo(d32, load_lanes(d8, from + lanes))), v1, v3);
  } else {
    constexpr GroupBits bits;
    std::uint64_t word = 0;
    std::memcpy(&word, codes + chunk * lanes / 2, lanes / 2);
    const auto lane_bit = hn::Shl(hn::Set(bits, 1), hn::Iota(bits, 0));
    const auto ones = [&](std::int64_t vector) HWY_ATTR {
      const auto set = hn::TestBit(hn::Set(bits, static_cast<std::uint32_t>(word >> (vector * lanes))), lane_bit);
      return hn::IfThenElse(hn::RebindMask(d, set), hn::Set(d, -1.0F), hn::Set(d, 1.0F));
    };
    v0 = ones(0);
    v1 = ones(1);
    v2 = ones(2);
    v3 = ones(3);
  }
}

// ---- writing

// Floats to which integer_rounder was added, or (fp8) words whose lowest byte is the code.
template <QuantizedFormat F, class V>
HWY_INLINE void store_codes(std::uint8_t* codes, std::int64_t chunk, V v0, V v1, V v2, V v3) {
  constexpr GroupTag d;
  constexpr hn::Rebind<std::uint8_t, GroupTag> d8;
  constexpr std::int64_t lanes = Chunks<F>::lanes;
  const auto store_bytes = [&](V v, std::uint8_t* to)
                               HWY_ATTR { store_lanes(d8, hn::TruncateTo(d8, hn::BitCast(GroupBits(), v)), to); };
  if constexpr (F == QuantizedFormat::int4) {
    const auto both = [&](V low, V high)
                          HWY_ATTR { return hn::MulAdd(hn::Sub(high, hn::Set(d, integer_rounder)), hn::Set(d, 16), low); };
    std::uint8_t* const to = codes + chunk * 2 * lanes;
    store_bytes(both(v0, v2), to);
    store_bytes(both(v1, v3), to + lanes);
  } else {
    std::uint8_t* const to = codes + chunk * 4 * lanes;
    store_bytes(v0, to);
    store_bytes(v1, to + lanes);
    store_bytes(v2, to + 2 * lanes);
    store_bytes(v3, to + 3 * lanes);
  }
}

// The nearest code, and what it leaves of x.
struct NearestInteger {
  Floats scale, inverse;

  HWY_INLINE Floats operator()(std::int64_t /*i*/, Floats x, Floats& left) const {
    constexpr GroupTag d;
    const auto rounder = hn::Set(d, integer_rounder);
    const auto rounded = hn::Add(hn::Mul(x, inverse), rounder);
    left = hn::NegMulAdd(hn::Sub(rounded, rounder), scale, x);
    return rounded;
  }
};

struct StochasticInteger {
  Floats scale, inverse, range;
  DrawKey key;
  Words elements;  // the numbers of the group's first

  HWY_INLINE Floats operator()(std::int64_t i, Floats x, Floats& left) const {
    constexpr GroupTag d;
    constexpr GroupBits bits;
    const auto y = hn::Min(hn::Max(hn::Mul(x, inverse), hn::Neg(range)), range);
    const auto below = hn::Floor(y);
    auto h = hn::Xor(hn::Add(elements, hn::Set(bits, static_cast<std::uint32_t>(i))), hn::Set(bits, key.before));
    h = hn::Mul(hn::Xor(h, hn::ShiftRight<16>(h)), hn::Set(bits, draw_factors[0]));
    h = hn::Add(hn::Xor(h, hn::ShiftRight<15>(h)), hn::Set(bits, key.between));
    h = hn::Mul(h, hn::Set(bits, draw_factors[1]));
    h = hn::ShiftRight<8>(hn::Xor(h, hn::ShiftRight<16>(h)));
    const auto drawn = hn::ConvertTo(d, hn::BitCast(hn::Rebind<std::int32_t, GroupTag>(), h));
    const auto up = hn::Lt(drawn, hn::Mul(hn::Sub(y, below), hn::Set(d, draws)));
    const auto code = hn::Add(below, hn::IfThenElseZero(up, hn::Set(d, 1.0F)));
    left = hn::NegMulAdd(code, scale, x);
    return hn::Add(code, hn::Set(d, integer_rounder));
  }
};

struct NearestFloat {
  Floats scale, inverse;

  HWY_INLINE Words operator()(std::int64_t /*i*/, Floats x, Floats& left) const {
    constexpr GroupTag d;
    const Words code = to_bits(d, Type<f8e4m3>(), hn::Mul(x, inverse));
    left = hn::NegMulAdd(from_bits(d, Type<f8e4m3>(), code), scale, x);
    return code;
  }
};

}  // namespace stretto::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
