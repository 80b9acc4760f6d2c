#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/quantize.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h, which includes this file again:
#include "device/cpu/quantize_codes-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace stretto::kernels::HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR  // whose vectors are one lane

void quantize_simd(QuantizedFormat format, DType dtype, const void* x, void* records, std::int64_t count,
                   const QuantizeOptions& options) {
  plain::quantize(format, dtype, x, records, count, options);
}
void dequantize_reduce_simd(QuantizedFormat format, const void* const* vectors, int vector_count, DType dtype, void* out,
                            std::int64_t count, std::int64_t divisor) {
  plain::dequantize_reduce(format, vectors, vector_count, dtype, out, count, divisor);
}
void requantize_simd(QuantizedFormat format, const void* const* vectors, int vector_count, QuantizedFormat to, void* records,
                     std::int64_t count, std::int64_t divisor, const QuantizeOptions& options) {
  plain::requantize(format, vectors, vector_count, to, records, count, divisor, options);
}

#else

namespace {

template <class T>
HWY_INLINE const void* element(const void* x, std::int64_t i) {
  return static_cast<const std::byte*>(x) + i * static_cast<std::int64_t>(sizeof(T));
}
template <class T>
HWY_INLINE void* element(void* x, std::int64_t i) {
  return static_cast<std::byte*>(x) + i * static_cast<std::int64_t>(sizeof(T));
}

// ---- quantize

// The bits of the largest |x| in each lane of a group, in whose order are magnitudes: infinity and NaN come last.
template <QuantizedFormat F, class T>
HWY_INLINE Words largest_of_group(const void* x) {
  constexpr GroupTag d;
  constexpr GroupBits bits;
  if constexpr (std::is_same_v<T, bf16>) {  // two elements a lane
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

// The largest lane of each of four vectors.
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

// The rare groups: with an element that is no number, or one whose code came out as the wrong neighbour.
template <QuantizedFormat F, class T>
HWY_NOINLINE void quantize_plainly(const void* x, std::uint8_t* record, const GroupOptions& options) {
  float values[group_elements(F)];
  constexpr GroupTag d;
  for_each_vector(d, group_elements(F), [&](std::int64_t i, auto which) HWY_ATTR {
    store_lanes(d, load_as<T>(d, element<T>(x, i), which), values + i, which);
  });
  quantize_group(F, values, group_elements(F), record, options);
}

// False where what a code leaves is beyond the limit.
template <QuantizedFormat F, class T, bool keeps, class Code>
HWY_INLINE bool encode(const void* x, std::uint8_t* codes, const Code& code, float limit, float* residual) {
  constexpr GroupTag d;
  auto worst = hn::Zero(d);
  for (std::int64_t chunk = 0; chunk < Chunks<F>::count; ++chunk) {
    const auto one = [&](int vector) HWY_ATTR {
      const std::int64_t i = Chunks<F>::at(chunk, vector);
      Floats left;
      const auto bits = code(i, load_as<T>(d, element<T>(x, i)), left);
      if constexpr (keeps) store_lanes(d, left, residual + i);
      if constexpr (F != QuantizedFormat::fp8) worst = hn::Max(worst, hn::Abs(left));
      return bits;
    };
    const auto v0 = one(0);
    const auto v1 = one(1);
    const auto v2 = one(2);
    const auto v3 = one(3);
    store_codes<F>(codes, chunk, v0, v1, v2, v3);
  }
  return F == QuantizedFormat::fp8 || hn::AllFalse(d, hn::Gt(worst, hn::Set(d, limit)));
}

// Of the groups that share a batch, the divisions do, too.
constexpr std::int64_t batch = largest_group;
constexpr std::int64_t most_groups = 16;

template <QuantizedFormat F>
HWY_INLINE void scales_of_groups(const std::uint32_t* largest, float* scales, float* inverses) {
  constexpr GroupTag d;
  constexpr GroupBits bits;
  constexpr ScaleRule rule = scale_rule(F, false);
  constexpr std::uint32_t dropped = (1U << rule.dropped_bits) - 1;
  for (std::int64_t i = 0; i < batch / group_elements(F); i += Chunks<F>::lanes) {
    const auto exact = hn::Div(load_lanes(d, largest + i), hn::Set(d, rule.range));
    const auto rounded = hn::And(hn::Add(hn::BitCast(bits, exact), hn::Set(bits, dropped)), hn::Set(bits, ~dropped));
    const auto scale =
        hn::Min(hn::Max(hn::BitCast(d, rounded), hn::Set(d, smallest_scale)), hn::Set(d, rule.largest_of_scale));
    store_lanes(d, scale, scales + i);
    store_lanes(d, hn::Div(hn::Set(d, 1), scale), inverses + i);
  }
}

// A batch of whole groups, some of which may be padding.
template <QuantizedFormat F, class T, bool keeps>
HWY_INLINE void quantize_batch(const void* x, std::int64_t there, std::uint8_t* record, const GroupOptions& options) {
  constexpr GroupTag d;
  constexpr std::int64_t group = group_elements(F);
  constexpr std::int64_t scale_bytes = F == QuantizedFormat::int4 ? 2 : 4;
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
  scales_of_groups<F>(largest, scales, inverses);
  const Words lane_numbers = hn::Iota(GroupBits(), 0);
  for (std::int64_t i = 0; i < groups; ++i, record += record_bytes(F)) {
    const void* const from = element<T>(x, i * group);
    GroupOptions of_group = options;
    of_group.first_element += static_cast<std::uint64_t>(i * group);
    if constexpr (keeps) of_group.residual += i * group;
    bool right = largest[i] < infinity_bits;
    if (right) {
      const float scale = scales[i];
      const std::uint32_t stored = std::bit_cast<std::uint32_t>(scale) >> (32 - 8 * scale_bytes);
      std::memcpy(record, &stored, scale_bytes);
      std::uint8_t* const codes = record + scale_bytes;
      const auto by = hn::Set(d, scale);
      const auto inverse = hn::Set(d, inverses[i]);
      if constexpr (F == QuantizedFormat::fp8) {
        encode<F, T, keeps>(from, codes, NearestFloat{by, inverse}, 0, of_group.residual);
      } else if (!options.stochastic) {
        right = encode<F, T, keeps>(from, codes, NearestInteger{by, inverse}, nearest_limit(scale), of_group.residual);
      } else {
        const auto lower = static_cast<std::uint32_t>(of_group.first_element);
        const auto upper = static_cast<std::uint32_t>(of_group.first_element >> 32);
        const Words elements = hn::Add(lane_numbers, hn::Set(GroupBits(), lower));
        const StochasticInteger code{by, inverse, hn::Set(d, scale_rule(F, false).range), DrawKey(options.seed, upper),
                                     elements};
        right = lower <= std::numeric_limits<std::uint32_t>::max() - largest_group &&
                encode<F, T, keeps>(from, codes, code, stochastic_limit(scale), of_group.residual);
      }
    }
    if (!right) quantize_plainly<F, T>(from, record, of_group);
  }
}

template <class T, bool keeps>
HWY_INLINE void quantize_onebit(const void* x, std::int64_t there, std::uint8_t* record, const GroupOptions& options) {
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

template <QuantizedFormat F, class T>
void quantize_elements(const void* x, std::uint8_t* records, std::int64_t count, const QuantizeOptions& options) {
  constexpr GroupTag d;
  for (std::int64_t begin = 0; begin < count; begin += batch, records += packed_bytes(F, batch)) {
    const std::int64_t there = std::min(batch, count - begin);
    GroupOptions of_batch{options.rounding == Rounding::stochastic, options.seed,
                          options.first_element + static_cast<std::uint64_t>(begin)};
    const auto quantize_from = [&]<class From, bool keeps>(From, std::bool_constant<keeps>, const void* from) HWY_ATTR {
      if constexpr (F == QuantizedFormat::onebit) {
        quantize_onebit<From, keeps>(from, there, records, of_batch);
      } else {
        quantize_batch<F, From, keeps>(from, there, records, of_batch);
      }
    };
    if (options.residual == nullptr && there % group_elements(F) == 0) {
      quantize_from(T{}, std::false_type(), element<T>(x, begin));
      continue;
    }
    // With a residual, or a short group: first made whole in the nearest cache.
    alignas(64) float values[batch];
    alignas(64) float left[batch];
    std::fill(values + there, values + whole_groups(F, there), 0.0F);
    for_each_vector(d, there, [&](std::int64_t i, auto which) HWY_ATTR {
      auto v = load_as<T>(d, element<T>(x, begin + i), which);
      if (options.residual != nullptr) v = hn::Add(v, load_lanes(d, options.residual + begin + i, which));
      store_lanes(d, v, values + i, which);
    });
    of_batch.residual = options.residual == nullptr ? nullptr : left;
    if (options.residual == nullptr) {
      quantize_from(float{}, std::false_type(), values);
    } else {
      quantize_from(float{}, std::true_type(), values);
      std::memcpy(options.residual + begin, left, there * sizeof(float));
    }
  }
}

// ---- dequantize and add

struct Sum {
  const void* const* vectors;
  int vector_count;
  std::int64_t divisor;

  HWY_INLINE const std::uint8_t* record(int vector, std::int64_t offset) const {
    return static_cast<const std::uint8_t*>(vectors[vector]) + offset;
  }
};

template <QuantizedFormat F>
HWY_INLINE std::uint32_t scale_bits(const std::uint8_t* record) {
  if constexpr (F == QuantizedFormat::int4) {
    std::uint16_t bits;
    std::memcpy(&bits, record, sizeof bits);
    return static_cast<std::uint32_t>(bits) << 16;
  } else {
    std::uint32_t bits;
    std::memcpy(&bits, record, sizeof bits);
    return bits;
  }
}

// The rare groups with special or very large ones among them.
template <QuantizedFormat F, class T>
HWY_NOINLINE void add_plainly(const Sum& sum, std::int64_t offset, void* out) {
  float total[group_elements(F)];
  plain::add_group(F, sum.vectors, sum.vector_count, offset, sum.divisor, total);
  constexpr GroupTag d;
  for_each_vector(d, group_elements(F), [&](std::int64_t i, auto which) HWY_ATTR {
    store_as<T>(d, load_lanes(d, total + i, which), element<T>(out, i), which);
  });
}

// The group whose records lie at offset in the vectors, to its elements.
template <QuantizedFormat F, class T, class Finish>
HWY_INLINE void add_whole(const Sum& sum, std::int64_t offset, void* out, Finish finish) {
  constexpr GroupTag d;
  constexpr std::int64_t scale_bytes = F == QuantizedFormat::int4 ? 2 : 4;
  // Negative scales of special groups and NaN come after those so large that a sum may be infinite.
  std::uint32_t largest = 0;
  for (int vector = 0; vector < sum.vector_count; ++vector) {
    largest = std::max(largest, scale_bits<F>(sum.record(vector, offset)));
  }
  if (largest > large_scale_bits) return add_plainly<F, T>(sum, offset, out);
  for (std::int64_t chunk = 0; chunk < Chunks<F>::count; ++chunk) {
    const auto scale_of = [&](const std::uint8_t* record)
                              HWY_ATTR { return hn::Set(d, std::bit_cast<float>(scale_bits<F>(record))); };
    Floats v0, v1, v2, v3;
    const std::uint8_t* record = sum.record(0, offset);
    auto scale = scale_of(record);
    decode<F>(record + scale_bytes, chunk, v0, v1, v2, v3);
    v0 = hn::Mul(v0, scale);
    v1 = hn::Mul(v1, scale);
    v2 = hn::Mul(v2, scale);
    v3 = hn::Mul(v3, scale);
    for (int vector = 1; vector < sum.vector_count; ++vector) {
      Floats c0, c1, c2, c3;
      record = sum.record(vector, offset);
      scale = scale_of(record);
      decode<F>(record + scale_bytes, chunk, c0, c1, c2, c3);
      // These products are exact: fused with the sum or not, it is the same.
      v0 = hn::MulAdd(c0, scale, v0);
      v1 = hn::MulAdd(c1, scale, v1);
      v2 = hn::MulAdd(c2, scale, v2);
      v3 = hn::MulAdd(c3, scale, v3);
    }
    store_number<T>(finish(v0), element<T>(out, Chunks<F>::at(chunk, 0)));
    store_number<T>(finish(v1), element<T>(out, Chunks<F>::at(chunk, 1)));
    store_number<T>(finish(v2), element<T>(out, Chunks<F>::at(chunk, 2)));
    store_number<T>(finish(v3), element<T>(out, Chunks<F>::at(chunk, 3)));
  }
}

template <QuantizedFormat F, class T, class Finish>
HWY_INLINE void add_groups(const Sum& sum, std::int64_t offset, void* out, std::int64_t count, Finish finish) {
  constexpr std::int64_t group = group_elements(F);
  std::int64_t begin = 0;
  for (; begin + group <= count; begin += group, offset += record_bytes(F)) {
    add_whole<F, T>(sum, offset, element<T>(out, begin), finish);
  }
  if (begin == count) return;
  alignas(64) float values[group];
  add_whole<F, float>(sum, offset, values, finish);
  constexpr GroupTag d;
  for_each_vector(d, count - begin, [&](std::int64_t i, auto which) HWY_ATTR {
    store_as<T>(d, load_lanes(d, values + i, which), element<T>(out, begin + i), which);
  });
}

template <QuantizedFormat F, class T>
void add_elements(const Sum& sum, std::int64_t offset, void* out, std::int64_t count) {
  constexpr GroupTag d;
  if (sum.divisor == 1) {
    add_groups<F, T>(sum, offset, out, count, [](Floats v) HWY_ATTR { return v; });
  } else if ((sum.divisor & (sum.divisor - 1)) == 0) {  // whose inverse is exact
    const auto by = hn::Set(d, 1 / static_cast<float>(sum.divisor));
    add_groups<F, T>(sum, offset, out, count, [=](Floats v) HWY_ATTR { return hn::Mul(v, by); });
  } else {
    const auto by = hn::Set(d, static_cast<float>(sum.divisor));
    add_groups<F, T>(sum, offset, out, count, [=](Floats v) HWY_ATTR { return hn::Div(v, by); });
  }
}

// Calls run with the format as a constant.
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
// The same for types that are quantized.
template <class Run>
HWY_INLINE void with_dtype(DType dtype, Run run) {
  if (dtype == DType::f32) return run(float{});
  if (dtype == DType::bf16) return run(bf16{});
  run(f16{});
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

void dequantize_reduce_simd(QuantizedFormat format, const void* const* vectors, int vector_count, DType dtype, void* out,
                            std::int64_t count, std::int64_t divisor) {
  const Sum sum{vectors, vector_count, divisor};
  with_format(format, [&](auto f) {
    with_dtype(dtype, [&]<class T>(T) { add_elements<decltype(f)::value, T>(sum, 0, out, count); });
  });
}

void requantize_simd(QuantizedFormat format, const void* const* vectors, int vector_count, QuantizedFormat to, void* records,
                     std::int64_t count, std::int64_t divisor, const QuantizeOptions& options) {
  const Sum sum{vectors, vector_count, divisor};
  alignas(64) float block[largest_group];  // whole groups of every format
  for (std::int64_t begin = 0; begin < count; begin += largest_group) {
    const std::int64_t there = std::min(largest_group, count - begin);
    with_format(format,
                [&](auto f) { add_elements<decltype(f)::value, float>(sum, packed_bytes(format, begin), block, there); });
    QuantizeOptions of_block = options;
    of_block.first_element += static_cast<std::uint64_t>(begin);
    if (options.residual != nullptr) of_block.residual += begin;
    with_format(to, [&](auto f) {
      quantize_elements<decltype(f)::value, float>(block, static_cast<std::uint8_t*>(records) + packed_bytes(to, begin),
                                                   there, of_block);
    });
  }
}
#endif

}  // namespace stretto::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace stretto::kernels {

HWY_EXPORT(quantize_simd);
HWY_EXPORT(dequantize_reduce_simd);
HWY_EXPORT(requantize_simd);

namespace {

void check_format(QuantizedFormat format) {
  require(format != QuantizedFormat::none && static_cast<int>(format) < quantized_formats,
          "{} is the number of no format with records; quantize to int8, int4, fp8 or onebit.", static_cast<int>(format));
}
void check_dtype(DType dtype) {
  require(dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16,
          "Elements of {} cannot be quantized; use f32, bf16 or f16.", name(dtype));
}
void check_options(QuantizedFormat format, const QuantizeOptions& options) {
  require(options.rounding == Rounding::nearest_even || format == QuantizedFormat::int8 || format == QuantizedFormat::int4,
          "{} rounds to nearest only; for stochastic rounding use int8 or int4.", name(format));
}
void check_sum(int vector_count, std::int64_t divisor) {
  require(vector_count >= 1, "There is nothing to add in {} vectors of records; give at least one.", vector_count);
  require(divisor >= 1, "Elements cannot be divided by {}; a divisor counts ranks and is at least 1.", divisor);
}

}  // namespace

void quantize(QuantizedFormat format, DType dtype, const void* x, void* records, std::int64_t count,
              const QuantizeOptions& options) {
  check_format(format);
  check_dtype(dtype);
  check_options(format, options);
  HWY_DYNAMIC_DISPATCH(quantize_simd)(format, dtype, x, records, count, options);
}

void dequantize(QuantizedFormat format, const void* records, DType dtype, void* out, std::int64_t count) {
  dequantize_reduce(format, &records, 1, dtype, out, count, 1);
}

void dequantize_reduce(QuantizedFormat format, const void* const* vectors, int vector_count, DType dtype, void* out,
                       std::int64_t count, std::int64_t divisor) {
  check_format(format);
  check_dtype(dtype);
  check_sum(vector_count, divisor);
  HWY_DYNAMIC_DISPATCH(dequantize_reduce_simd)(format, vectors, vector_count, dtype, out, count, divisor);
}

void requantize(QuantizedFormat format, const void* const* vectors, int vector_count, QuantizedFormat to, void* records,
                std::int64_t count, std::int64_t divisor, const QuantizeOptions& options) {
  check_format(format);
  check_format(to);
  check_options(to, options);
  check_sum(vector_count, divisor);
  HWY_DYNAMIC_DISPATCH(requantize_simd)(format, vectors, vector_count, to, records, count, divisor, options);
}

}  // namespace stretto::kernels
#endif
