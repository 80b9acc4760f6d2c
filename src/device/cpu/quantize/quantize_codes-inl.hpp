// Codes of a whole group as vectors, for quantize.cpp and dequantize.cpp. They are written and read in chunks of four
// vectors. A kernel includes this file once for each instruction set (Highway).
#if defined(STRETTO_DEVICE_CPU_QUANTIZE_CODES_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef STRETTO_DEVICE_CPU_QUANTIZE_CODES_INL_HPP
#undef STRETTO_DEVICE_CPU_QUANTIZE_CODES_INL_HPP
#else
#define STRETTO_DEVICE_CPU_QUANTIZE_CODES_INL_HPP
#endif

#include <hwy/cache_control.h>

#include "device/cpu/quantize/quantize_plain.hpp"
#include "device/cpu/simd-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace stretto::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET != HWY_SCALAR  // vectors of more than one lane

using GroupTag = hn::CappedTag<float, 16>;
using GroupBits = hn::Rebind<std::uint32_t, GroupTag>;
using Floats = hn::Vec<GroupTag>;
using Words = hn::Vec<GroupBits>;

// The positions of a chunk's vectors in the group: 16 elements apart, in vectors of any width (in onebit: one directly after
// the other).
template <QuantizedFormat F>
struct Chunks {
  static constexpr std::int64_t lanes = hn::MaxLanes(GroupTag());
  static constexpr std::int64_t count = group_elements(F) / (4 * lanes);
  static constexpr std::int64_t at(std::int64_t chunk, int vector) {
    const std::int64_t first = chunk * lanes;
    return F == QuantizedFormat::onebit ? 4 * first + vector * lanes : first / 16 * 64 + first % 16 + 16 * vector;
  }
};
template <QuantizedFormat F>
constexpr std::int64_t scale_bytes = F == QuantizedFormat::int4 ? 2 : 4;

// ---- loops over elements

template <class T>
HWY_INLINE const void* element(const void* x, std::int64_t i) {
  return static_cast<const std::byte*>(x) + i * static_cast<std::int64_t>(sizeof(T));
}
template <class T>
HWY_INLINE void* element(void* x, std::int64_t i) {
  return static_cast<std::byte*>(x) + i * static_cast<std::int64_t>(sizeof(T));
}

// Elements that are processed at a time: whole groups in every format.
constexpr std::int64_t batch = 4 * largest_group;

// Prefetch distance in bytes: a group takes so much computation that the processor's own prefetching comes too late.
// Prefetching beyond the end of an array is harmless.
constexpr std::int64_t fetch_distance = 2048;
template <QuantizedFormat F>
HWY_INLINE void fetch_ahead(const std::uint8_t* record) {
  for (std::int64_t line = 0; line < record_bytes(F); line += 64) hwy::Prefetch(record + fetch_distance + line);
}

// Calls run with the format as a compile-time constant.
template <class Run>
HWY_INLINE void with_format(QuantizedFormat format, Run run) {
  using enum QuantizedFormat;
  switch (format) {
    case none: return;
    case int8: return run(std::integral_constant<QuantizedFormat, int8>());
    case int4: return run(std::integral_constant<QuantizedFormat, int4>());
    case fp8: return run(std::integral_constant<QuantizedFormat, fp8>());
    case onebit: return run(std::integral_constant<QuantizedFormat, onebit>());
  }
}
// Calls run with a value of the C++ type, for the types that can be quantized.
template <class Run>
HWY_INLINE void with_dtype(DType dtype, Run run) {
  if (dtype == DType::f32) return run(float{});
  if (dtype == DType::bf16) return run(bf16{});
  run(f16{});
}

// ---- reading

template <class V>
HWY_INLINE Floats from_signed(V code) {
  return hn::ConvertTo(GroupTag(), hn::BitCast(hn::Rebind<std::int32_t, GroupTag>(), code));
}

// Adds the elements of a record to the sums, or stores them if they are the first. An element is code * scale * factor,
// where factor is a power of two; this product is exact, so that fusing it with the sum changes nothing.
template <QuantizedFormat F, bool first>
HWY_INLINE void add_chunk(const std::uint8_t* record, std::int64_t chunk, float factor, Floats& v0, Floats& v1, Floats& v2,
                          Floats& v3) {
  constexpr GroupTag d;
  constexpr GroupBits bits;
  constexpr hn::Rebind<std::int32_t, GroupTag> d32;
  constexpr std::int64_t lanes = Chunks<F>::lanes;
  std::uint32_t scale_bits;  // in int4, the upper half holds the first codes
  std::memcpy(&scale_bits, record, sizeof scale_bits);
  const std::uint8_t* const codes = record + scale_bytes<F>;
  Floats scale = hn::BitCast(d, hn::Set(bits, scale_bits));
  if constexpr (F == QuantizedFormat::int4) scale = hn::BitCast(d, hn::ShiftLeft<16>(hn::Set(bits, scale_bits)));
  if constexpr (!(F == QuantizedFormat::int4 && HWY_TARGET <= HWY_AVX3)) scale = hn::Mul(scale, hn::Set(d, factor));
  const auto add = [&](Floats code, Floats& sum)
                       HWY_ATTR { sum = first ? hn::Mul(code, scale) : hn::MulAdd(code, scale, sum); };
  if constexpr (F == QuantizedFormat::int4) {
    constexpr hn::Rebind<std::uint16_t, GroupTag> d16;
    const Words words = hn::PromoteTo(bits, load_lanes(d16, codes + 2 * chunk * lanes));
#if HWY_TARGET <= HWY_AVX3  // a vector holds the elements of all 16 codes
    alignas(64) constexpr float numbers[16] = {0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1};
    const Floats table = hn::Mul(hn::Mul(hn::Load(d, numbers), hn::Set(d, factor)), scale);
    const auto add_four_bits = [&](Words where, Floats& sum) HWY_ATTR {
      const Floats element{_mm512_permutexvar_ps(where.raw, table.raw)};  // indexed by the lowest four bits
      sum = first ? element : hn::Add(sum, element);
    };
    add_four_bits(words, v0);
    add_four_bits(hn::ShiftRight<4>(words), v1);
    add_four_bits(hn::ShiftRight<8>(words), v2);
    add_four_bits(hn::ShiftRight<12>(words), v3);
#else
    const auto top_four_bits = [&](Words w) HWY_ATTR { return from_signed(hn::ShiftRight<28>(hn::BitCast(d32, w))); };
    add(top_four_bits(hn::ShiftLeft<28>(words)), v0);
    add(top_four_bits(hn::ShiftLeft<24>(words)), v1);
    add(top_four_bits(hn::ShiftLeft<20>(words)), v2);
    add(top_four_bits(hn::ShiftLeft<16>(words)), v3);
#endif
  } else if constexpr (F == QuantizedFormat::onebit) {
    std::uint64_t word = 0;
    std::memcpy(&word, codes + chunk * lanes / 2, lanes / 2);
    const auto lane_bit = hn::Shl(hn::Set(bits, 1), hn::Iota(bits, 0));
    const auto ones = [&](std::int64_t vector) HWY_ATTR {
      const auto set = hn::TestBit(hn::Set(bits, static_cast<std::uint32_t>(word >> (vector * lanes))), lane_bit);
      return hn::IfThenElse(hn::RebindMask(d, set), hn::Set(d, -1.0F), hn::Set(d, 1.0F));
    };
    add(ones(0), v0);
    add(ones(1), v1);
    add(ones(2), v2);
    add(ones(3), v3);
  } else {
    const auto code = [&](int vector) HWY_ATTR {
      const std::uint8_t* const from = codes + Chunks<F>::at(chunk, vector);
      if constexpr (F == QuantizedFormat::fp8) {
        return load_as<f8e4m3>(d, from);
      } else {
        return from_signed(hn::PromoteTo(d32, load_lanes(hn::Rebind<std::int8_t, GroupTag>(), from)));
      }
    };
    add(code(0), v0);
    add(code(1), v1);
    add(code(2), v2);
    add(code(3), v3);
  }
}

// ---- writing

HWY_INLINE Words select_bits(Words mask, Words yes, Words no) {
#if HWY_TARGET <= HWY_AVX3
  return hn::IfVecThenElse(mask, yes, no);  // one instruction here, for any bits; elsewhere it may use some bits only
#else
  return hn::Or(hn::And(mask, yes), hn::AndNot(mask, no));
#endif
}

// Each word has a code in its third byte: code + 128 in int8, the lower four bits in int4.
template <QuantizedFormat F>
HWY_INLINE void store_codes(std::uint8_t* codes, std::int64_t chunk, Words w0, Words w1, Words w2, Words w3) {
  constexpr GroupBits bits;
  constexpr std::int64_t lanes = Chunks<F>::lanes;
  const auto select = [&](std::uint32_t mask, Words yes, Words no)
                          HWY_ATTR { return select_bits(hn::Set(bits, mask), yes, no); };
  if constexpr (F == QuantizedFormat::int4) {
    constexpr hn::Rebind<std::uint16_t, GroupTag> d16;
    const Words low = select(0x000f0000, w0, hn::ShiftLeft<4>(w1));
    const Words high = select(0x000f0000, w2, hn::ShiftLeft<4>(w3));
    const Words all = select(0x00ff0000, low, hn::ShiftLeft<8>(high));
    store_lanes(d16, hn::TruncateTo(d16, hn::ShiftRight<16>(all)), codes + 2 * chunk * lanes);
  } else {
    // The four bytes of each word are the codes of this lane in the four vectors.
    const Words even = select(0xffff0000, w2, hn::ShiftRight<16>(w0));
    const Words odd = select(0xffff0000, w3, hn::ShiftRight<16>(w1));
    Words all = select(0x00ff00ff, even, hn::ShiftLeft<8>(odd));
    if constexpr (F == QuantizedFormat::int8) all = hn::Xor(all, hn::Set(bits, 0x80808080));
    if constexpr (lanes == 16) {
      constexpr hn::Repartition<std::uint8_t, GroupBits> d8;
      alignas(16) constexpr std::uint8_t transposed[16] = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};
      alignas(64) constexpr std::int32_t by_vector[16] = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};
      const Words of_block = hn::BitCast(bits, hn::TableLookupBytes(hn::BitCast(d8, all), hn::LoadDup128(d8, transposed)));
      store_lanes(bits, hn::TableLookupLanes(of_block, hn::SetTableIndices(bits, by_vector)), codes + chunk * 4 * lanes);
    } else {
      constexpr hn::Rebind<std::uint8_t, GroupTag> d8;
      std::uint8_t* const to = codes + Chunks<F>::at(chunk, 0);
      store_lanes(d8, hn::TruncateTo(d8, all), to);
      store_lanes(d8, hn::TruncateTo(d8, hn::ShiftRight<8>(all)), to + 16);
      store_lanes(d8, hn::TruncateTo(d8, hn::ShiftRight<16>(all)), to + 32);
      store_lanes(d8, hn::TruncateTo(d8, hn::ShiftRight<24>(all)), to + 48);
    }
  }
}

// ---- rounding: from elements to words for store_codes, one vector after another. Afterwards right() is false if a code may
// be wrong.

// The nearest code of elements that are so far from the midpoint of two codes that the rounding error of a product cannot
// matter; right() returns whether all elements were.
template <QuantizedFormat F>
struct ClearlyNearest {
  static constexpr FixedPoint point = fixed_point(F);
  static constexpr int shift = 16 - point.fraction_bits;  // moves the fraction into the lower half of a word
  using Halves = hn::Repartition<std::uint16_t, GroupTag>;

  Floats inverse;
  hn::Vec<Halves> least = hn::Set(Halves(), 0xffff);

  // Adds a half and one unit and rounds down: the fraction is 1 at the midpoint, and 0 to 2 near it.
  HWY_INLINE Words operator()(std::int64_t /*chunk*/, int /*vector*/, Floats x) {
    const auto moved = hn::Set(GroupTag(), point.zero + 0.5F + point.unit());
    const Words fixed = hn::ShiftLeft<shift>(hn::BitCast(GroupBits(), hn::MulAdd(x, inverse, moved)));
    least = hn::Min(least, hn::BitCast(Halves(), fixed));
    return fixed;
  }
  HWY_INLINE bool right() const {
    // The upper halves contain a float's exponent, and are larger.
    return hn::AllTrue(Halves(), hn::Gt(least, hn::Set(Halves(), 2U << shift)));
  }
};

// The nearest code from a rounded product, ties to even; right() is false if a code is the wrong neighbour.
template <QuantizedFormat F, bool keeps>
struct NearestInteger {
  float scale;
  Floats by, inverse;
  float* residual;
  Floats worst = hn::Zero(GroupTag());

  HWY_INLINE Words operator()(std::int64_t chunk, int vector, Floats x) {
    constexpr GroupTag d;
    constexpr GroupBits bits;
    const auto rounder = hn::Set(d, integer_rounder);
    const auto rounded = hn::Add(hn::Mul(x, inverse), rounder);
    const auto left = hn::NegMulAdd(hn::Sub(rounded, rounder), by, x);
    worst = hn::Max(worst, hn::Abs(left));
    if constexpr (keeps) store_lanes(d, left, residual + Chunks<F>::at(chunk, vector));
    return hn::ShiftLeft<16>(hn::Add(hn::BitCast(bits, rounded), hn::Set(bits, F == QuantizedFormat::int8 ? 128 : 0)));
  }
  HWY_INLINE bool right() const {
    constexpr GroupTag d;
    return hn::AllFalse(d, hn::Gt(worst, hn::Set(d, nearest_limit(scale))));
  }
};

// Stochastic rounding, for elements of magnitudes up to the scale times the largest code.
template <QuantizedFormat F, bool keeps>
struct StochasticInteger {
  static constexpr FixedPoint point = fixed_point(F);

  Floats by, inverse;
  DrawKey key;
  Words elements;  // the numbers of the group's first elements
  float* residual;
  Words hash = hn::Zero(GroupBits());

  HWY_INLINE Words operator()(std::int64_t chunk, int vector, Floats x) {
    constexpr GroupTag d;
    constexpr GroupBits bits;
    const auto i = static_cast<std::uint32_t>(Chunks<F>::at(chunk, vector));
    if (vector % 2 == 0) {
      auto h = hn::Xor(hn::Add(elements, hn::Set(bits, i)), hn::Set(bits, key.before));
      h = hn::Mul(hn::Xor(h, hn::ShiftRight<16>(h)), hn::Set(bits, draw_factors[0]));
      h = hn::Add(hn::Xor(h, hn::ShiftRight<15>(h)), hn::Set(bits, key.between));
      h = hn::Mul(h, hn::Set(bits, draw_factors[1]));
      hash = hn::Xor(h, hn::ShiftRight<16>(h));
    }
    const Words drawn = vector % 2 == 0 ? hn::And(hash, hn::Set(bits, (1U << point.fraction_bits) - 1))
                                        : hn::ShiftRight<32 - point.fraction_bits>(hash);
    const auto fixed = hn::BitCast(bits, hn::Add(hn::Mul(x, inverse), hn::Set(d, point.zero)));
    const Words code = hn::Add(fixed, drawn);
    if constexpr (keeps) {
      constexpr std::uint32_t zero = std::bit_cast<std::uint32_t>(point.zero) >> point.fraction_bits;
      const auto whole = from_signed(hn::Sub(hn::ShiftRight<point.fraction_bits>(code), hn::Set(bits, zero)));
      store_lanes(d, hn::NegMulAdd(whole, by, x), residual + i);
    }
    return hn::ShiftLeft<16 - point.fraction_bits>(code);
  }
  HWY_INLINE bool right() const { return true; }
};

template <bool keeps>
struct NearestFloat {
  Floats by, inverse;
  float* residual;

  HWY_INLINE Words operator()(std::int64_t chunk, int vector, Floats x) {
    constexpr GroupTag d;
    const Words code = to_bits(d, Type<f8e4m3>(), hn::Mul(x, inverse));
    if constexpr (keeps) {
      const auto left = hn::NegMulAdd(from_bits(d, Type<f8e4m3>(), code), by, x);
      store_lanes(d, left, residual + Chunks<QuantizedFormat::fp8>::at(chunk, vector));
    }
    return hn::ShiftLeft<16>(code);
  }
  HWY_INLINE bool right() const { return true; }
};

#endif

}  // namespace stretto::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
