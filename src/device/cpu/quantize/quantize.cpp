#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/quantize/quantize.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h, which includes this file again:
#include "device/cpu/cpu_level.hpp"
#include "device/cpu/host_kernels.hpp"
#include "device/cpu/quantize/quantize_codes-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace stretto::kernels::HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR  // vectors of one lane

void quantize_simd(QuantizedFormat format, DType dtype, const void* x, void* records, std::int64_t count,
                   const QuantizeOptions& options) {
  plain::quantize(format, dtype, x, records, count, options);
}

#else

namespace {

// The bits of the largest |x| in each lane of a group. As integers they are in the order of magnitude, with infinity and NaN
// as the largest.
template <QuantizedFormat F, class T>
HWY_INLINE Words largest_of_group(const void* x) {
  constexpr GroupTag d;
  constexpr GroupBits bits;
  if constexpr (std::is_same_v<T, bf16>) {  // two elements in a lane
    constexpr hn::Repartition<std::uint16_t, GroupTag> halves;
    auto largest = hn::Zero(halves);
    for (std::int64_t i = 0; i < group_elements(F); i += 2 * Chunks<F>::lanes) {
      largest = hn::Max(largest, hn::And(load_lanes(halves, element<T>(x, i)), hn::Set(halves, 0x7fff)));
    }
    const auto pairs = hn::BitCast(bits, largest);
    return hn::Max(hn::ShiftLeft<16>(pairs), hn::And(pairs, hn::Set(bits, 0xffff0000)));
  } else {
    auto largest = hn::Zero(bits);
    for (std::int64_t i = 0; i < group_elements(F); i += Chunks<F>::lanes) {
      const auto magnitude = hn::And(hn::BitCast(bits, load_as<T>(d, element<T>(x, i))), hn::Set(bits, ~sign_bit));
      largest = hn::Max(largest, magnitude);
    }
    return largest;
  }
}

// Stores the largest lane of each of four vectors.
HWY_INLINE void store_largest(Words a, Words b, Words c, Words e, std::uint32_t* to) {
  constexpr GroupBits d;
  constexpr hn::Repartition<std::uint64_t, GroupBits> pairs;
  const auto ab = hn::BitCast(pairs, hn::Max(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b)));
  const auto ce = hn::BitCast(pairs, hn::Max(hn::InterleaveLower(d, c, e), hn::InterleaveUpper(d, c, e)));
  auto all = hn::Max(hn::BitCast(d, hn::InterleaveLower(pairs, ab, ce)), hn::BitCast(d, hn::InterleaveUpper(pairs, ab, ce)));
  constexpr std::int64_t lanes = hn::MaxLanes(GroupBits());
  if constexpr (lanes >= 8) all = hn::Max(all, hn::ReverseBlocks(d, all));
  if constexpr (lanes >= 16) all = hn::Max(all, hn::SwapAdjacentBlocks(all));
  HWY_ALIGN std::uint32_t stored[lanes];
  hn::Store(all, d, stored);
  std::memcpy(to, stored, 4 * sizeof *to);
}

// For rare groups: with an infinite, NaN or very large element, or with an element whose vector code is not the nearest.
template <QuantizedFormat F, class T>
HWY_NOINLINE void quantize_plainly(const void* x, std::uint8_t* record, const GroupOptions& options) {
  float values[group_elements(F)];
  constexpr GroupTag d;
  for_each_vector(d, group_elements(F), [&](std::int64_t i, auto which) HWY_ATTR {
    store_lanes(d, load_as<T>(d, element<T>(x, i), which), values + i, which);
  });
  quantize_group(F, values, group_elements(F), record, options);
}

// Stores the codes of a group; returns false if one of them may be wrong.
template <QuantizedFormat F, class T, class Round>
HWY_INLINE bool encode(const void* x, std::uint8_t* codes, Round round) {
  for (std::int64_t chunk = 0; chunk < Chunks<F>::count; ++chunk) {
    const auto word = [&](int vector) HWY_ATTR {
      // The next batch.
      hwy::Prefetch(static_cast<const std::byte*>(element<T>(x, Chunks<F>::at(chunk, vector) + batch)));
      return round(chunk, vector, load_as<T>(GroupTag(), element<T>(x, Chunks<F>::at(chunk, vector))));
    };
    const Words w0 = word(0);
    const Words w1 = word(1);
    const Words w2 = word(2);
    const Words w3 = word(3);
    store_codes<F>(codes, chunk, w0, w1, w2, w3);
  }
  return round.right();
}

// For groups with elements near the midpoint of two codes, and for groups whose residual is kept.
template <QuantizedFormat F, class T, bool keeps>
HWY_NOINLINE bool encode_nearest(const void* x, std::uint8_t* codes, float scale, float inverse, float* residual) {
  constexpr GroupTag d;
  return encode<F, T>(x, codes, NearestInteger<F, keeps>{scale, hn::Set(d, scale), hn::Set(d, inverse), residual});
}

// The scales of all groups in a batch are computed as vectors, so that groups share divisions.
constexpr std::int64_t most_groups = batch / group_elements(QuantizedFormat::int4);

template <QuantizedFormat F>
HWY_INLINE void scales_of_groups(std::int64_t groups, const std::uint32_t* largest, float* scales, float* inverses) {
  constexpr GroupTag d;
  constexpr GroupBits bits;
  constexpr ScaleRule rule = scale_rule(F, false);
  constexpr std::uint32_t dropped = (1U << rule.dropped_bits) - 1;
  for (std::int64_t i = 0; i < groups; i += Chunks<F>::lanes) {
    const auto exact = hn::Div(load_lanes(d, largest + i), hn::Set(d, rule.range));
    const auto rounded = hn::And(hn::Add(hn::BitCast(bits, exact), hn::Set(bits, dropped)), hn::Set(bits, ~dropped));
    const auto scale =
        hn::Min(hn::Max(hn::BitCast(d, rounded), hn::Set(d, smallest_scale)), hn::Set(d, rule.largest_of_scale));
    store_lanes(d, scale, scales + i);
    store_lanes(d, hn::Div(hn::Set(d, 1), scale), inverses + i);
  }
}

// Quantizes a batch of whole groups; the last elements may be padding.
template <QuantizedFormat F, class T, bool keeps>
HWY_NOINLINE void quantize_batch(const void* x, std::int64_t there, std::uint8_t* record, const GroupOptions& options) {
  constexpr GroupTag d;
  constexpr std::int64_t group = group_elements(F);
  const std::int64_t groups = (there + group - 1) / group;
  HWY_ALIGN std::uint32_t largest[most_groups] = {};
  HWY_ALIGN float scales[most_groups];
  HWY_ALIGN float inverses[most_groups];
  for (std::int64_t i = 0; i < groups; i += 4) {
    const auto of_group = [&](std::int64_t g) HWY_ATTR {
      return g < groups ? largest_of_group<F, T>(element<T>(x, g * group)) : hn::Zero(GroupBits());
    };
    store_largest(of_group(i), of_group(i + 1), of_group(i + 2), of_group(i + 3), largest + i);
  }
  scales_of_groups<F>(groups, largest, scales, inverses);
  const auto options_of = [&](std::int64_t i) {
    GroupOptions of_group = options;
    of_group.first_element += static_cast<std::uint64_t>(i * group);
    if constexpr (keeps) of_group.residual += i * group;
    return of_group;
  };
  // Encodes all groups first, without a function call in between, so that constants stay in registers; then repeats those
  // with a wrong code.
  std::uint64_t wrong = 0;  // one bit for each group
  const auto for_each_group = [&](auto encode_group) HWY_ATTR {
    for (std::int64_t i = 0; i < groups; ++i) {
      std::uint8_t* const to = record + i * record_bytes(F);
      fetch_ahead<F>(to);
      const std::uint32_t stored = std::bit_cast<std::uint32_t>(scales[i]) >> (32 - 8 * scale_bytes<F>);
      std::memcpy(to, &stored, scale_bytes<F>);
      const bool right = encode_group(i, element<T>(x, i * group), to + scale_bytes<F>);
      wrong |= static_cast<std::uint64_t>(!right || largest[i] >= infinity_bits) << i;
    }
  };
  if constexpr (F == QuantizedFormat::fp8) {
    for_each_group([&](std::int64_t i, const void* from, std::uint8_t* codes) HWY_ATTR {
      const NearestFloat<keeps> round{hn::Set(d, scales[i]), hn::Set(d, inverses[i]), options_of(i).residual};
      return encode<F, T>(from, codes, round);
    });
  } else if (options.stochastic) {
    const Words lane_numbers = hn::Iota(GroupBits(), 0);
    for_each_group([&](std::int64_t i, const void* from, std::uint8_t* codes) HWY_ATTR {
      const GroupOptions of_group = options_of(i);
      const auto lower = static_cast<std::uint32_t>(of_group.first_element);
      const DrawKey key(options.seed, static_cast<std::uint32_t>(of_group.first_element >> 32));
      const StochasticInteger<F, keeps> round{hn::Set(d, scales[i]), hn::Set(d, inverses[i]), key,
                                              hn::Add(lane_numbers, hn::Set(GroupBits(), lower)), of_group.residual};
      return encode<F, T>(from, codes, round) && lower <= std::numeric_limits<std::uint32_t>::max() - largest_group &&
             std::bit_cast<float>(largest[i]) <= scale_rule(F, false).range * scales[i];
    });
  } else {
    for_each_group([&](std::int64_t i, const void* from, std::uint8_t* codes) HWY_ATTR {
      if constexpr (keeps) {
        return encode_nearest<F, T, true>(from, codes, scales[i], inverses[i], options_of(i).residual);
      } else {
        return encode<F, T>(from, codes, ClearlyNearest<F>{hn::Set(d, inverses[i])});
      }
    });
  }
  for (; wrong != 0; wrong &= wrong - 1) {
    const int i = std::countr_zero(wrong);
    const void* const from = element<T>(x, i * group);
    std::uint8_t* const to = record + i * record_bytes(F);
    if constexpr (!keeps && F != QuantizedFormat::fp8) {
      if (!options.stochastic && largest[i] < infinity_bits &&
          encode_nearest<F, T, false>(from, to + scale_bytes<F>, scales[i], inverses[i], nullptr))
        continue;
    }
    quantize_plainly<F, T>(from, to, options_of(i));
  }
}

template <class T, bool keeps>
HWY_NOINLINE void quantize_onebit(const void* x, std::int64_t there, std::uint8_t* record, const GroupOptions& options) {
  constexpr GroupTag d;
  using Parts = Chunks<QuantizedFormat::onebit>;
  alignas(64) float sums[mean_lanes];
  for (std::int64_t part = 0; part < mean_lanes; part += Parts::lanes) {
    auto sum = hn::Zero(d);
    for (std::int64_t i = part; i < largest_group; i += mean_lanes) {
      sum = hn::Add(sum, hn::Mul(hn::Abs(load_as<T>(d, element<T>(x, i))), hn::Set(d, mean_factor)));
    }
    store_lanes(d, sum, sums + part);
  }
  const float scale = mean_of_sums(sums, there);
  std::memcpy(record, &scale, sizeof scale);
  for (std::int64_t chunk = 0; chunk < Parts::count; ++chunk) {
    std::uint64_t word = 0;
    for (int vector = 0; vector < 4; ++vector) {
      const std::int64_t i = Parts::at(chunk, vector);
      constexpr hn::Rebind<std::int32_t, GroupTag> d32;
      const auto v = load_as<T>(d, element<T>(x, i));
      const auto negative = hn::Lt(hn::BitCast(d32, v), hn::Zero(d32));
      std::uint8_t bytes[8] = {};
      hn::StoreMaskBits(d32, negative, bytes);
      std::uint64_t bits = 0;
      std::memcpy(&bits, bytes, sizeof bits);
      word |= bits << (vector * Parts::lanes);
      if constexpr (keeps) {
        const auto by = hn::Set(d, scale);
        const auto left = hn::Sub(v, hn::IfThenElse(hn::RebindMask(d, negative), hn::Neg(by), by));
        store_lanes(d, is_finite(scale) ? left : hn::Zero(d), options.residual + i);
      }
    }
    if (!is_finite(scale)) word = 0;
    std::memcpy(record + sizeof scale + chunk * Parts::lanes / 2, &word, Parts::lanes / 2);
  }
}

// Loads the elements of a batch, adds their residual, if any, and fills up to `whole` with zeros.
template <class T>
HWY_NOINLINE void load_batch(const void* x, const float* residual, std::int64_t there, std::int64_t whole, float* values) {
  constexpr GroupTag d;
  std::fill(values + there, values + whole, 0.0F);
  for_each_vector(d, there, [&](std::int64_t i, auto which) HWY_ATTR {
    auto v = load_as<T>(d, element<T>(x, i), which);
    if (residual != nullptr) v = hn::Add(v, load_lanes(d, residual + i, which));
    store_lanes(d, v, values + i, which);
  });
}

template <QuantizedFormat F, class T, bool keeps>
HWY_INLINE void quantize_batch_of(const void* x, std::int64_t there, std::uint8_t* records, const GroupOptions& options) {
  if constexpr (F == QuantizedFormat::onebit) {
    for (std::int64_t begin = 0; begin < there; begin += largest_group, records += record_bytes(F)) {
      GroupOptions of_group = options;
      if constexpr (keeps) of_group.residual += begin;
      quantize_onebit<T, keeps>(element<T>(x, begin), std::min(largest_group, there - begin), records, of_group);
    }
  } else {
    quantize_batch<F, T, keeps>(x, there, records, options);
  }
}

template <QuantizedFormat F, class T>
void quantize_elements(const void* x, std::uint8_t* records, std::int64_t count, const QuantizeOptions& options) {
  alignas(64) float values[batch];
  alignas(64) float left[batch];
  for (std::int64_t begin = 0; begin < count; begin += batch, records += packed_bytes(F, batch)) {
    const std::int64_t there = std::min(batch, count - begin);
    const void* const from = element<T>(x, begin);
    GroupOptions of_batch{options.rounding == Rounding::stochastic, options.seed,
                          options.first_element + static_cast<std::uint64_t>(begin)};
    if constexpr (!std::is_same_v<T, f16>) {
      if (options.residual == nullptr && there % group_elements(F) == 0) {
        quantize_batch_of<F, T, false>(from, there, records, of_batch);
        continue;
      }
    }
    // With a residual or a short group: whole groups are first made in the L1 cache.
    float* const residual = options.residual == nullptr ? nullptr : options.residual + begin;
    load_batch<T>(from, residual, there, whole_groups(F, there), values);
    if (residual == nullptr) {
      quantize_batch_of<F, float, false>(values, there, records, of_batch);
    } else {
      of_batch.residual = left;
      quantize_batch_of<F, float, true>(values, there, records, of_batch);
      std::memcpy(residual, left, there * sizeof(float));
    }
  }
}

}  // namespace

void quantize_simd(QuantizedFormat format, DType dtype, const void* x, void* records, std::int64_t count,
                   const QuantizeOptions& options) {
  with_format(format, [&](auto f) {
    with_dtype(dtype, [&]<class T>(T) {
      quantize_elements<decltype(f)::value, T>(x, static_cast<std::uint8_t*>(records), count, options);
    });
  });
}

#endif

}  // namespace stretto::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace stretto::kernels::cpu {

HWY_EXPORT(quantize_simd);

void quantize(QuantizedFormat format, DType dtype, const void* x, void* records, std::int64_t count,
              const QuantizeOptions& options) {
  STRETTO_DISPATCH(quantize_simd)(format, dtype, x, records, count, options);
}

}  // namespace stretto::kernels::cpu
#endif
