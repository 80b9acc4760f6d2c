#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/quantize/dequantize.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h, which includes this file again:
#include "device/cpu/cpu_level.hpp"
#include "device/cpu/host_kernels.hpp"
#include "device/cpu/quantize/quantize_codes-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace stretto::kernels::HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR  // vectors of one lane

void dequantize_reduce_simd(QuantizedFormat format, const void* const* vectors, int vector_count, DType dtype, void* out,
                            std::int64_t count, std::int64_t divisor) {
  plain::dequantize_reduce(format, vectors, vector_count, dtype, out, count, divisor);
}

#else

namespace {

struct Sum {
  const void* const* vectors;
  int vector_count;
  // The inverse of a power of two is exact, so scales are multiplied by it instead of dividing sums; only small powers, so
  // that scales keep their last bits. By other divisors, sums are divided when they leave the L1 cache.
  float factor;
  std::int64_t divisor;

  Sum(const void* const* sources, int source_count, std::int64_t by) : vectors(sources), vector_count(source_count) {
    const bool exact = (by & (by - 1)) == 0 && by <= 32;
    factor = exact ? 1 / static_cast<float>(by) : 1;
    divisor = exact ? 1 : by;
  }

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

// For the rare groups of which some records are special or have very large scales.
template <QuantizedFormat F, class T>
HWY_NOINLINE void add_plainly(const Sum& sum, std::int64_t offset, void* out) {
  float total[group_elements(F)];
  plain::add_group(F, sum.vectors, sum.vector_count, offset, 1, total);
  constexpr GroupTag d;
  for_each_vector(d, group_elements(F), [&](std::int64_t i, auto which) HWY_ATTR {
    store_as<T>(d, hn::Mul(load_lanes(d, total + i, which), hn::Set(d, sum.factor)), element<T>(out, i), which);
  });
}

// Stores a number that rounds to a finite T: without the test for NaN.
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

// Adds the records at `offset` of all vectors and stores the elements of the group.
template <QuantizedFormat F, class T>
HWY_INLINE void add_group(const Sum& sum, std::int64_t offset, void* out) {
  // As integers, the negative scales of special groups and NaN are larger than scales so large that a sum may be infinite.
  std::uint32_t largest = 0;
  for (int vector = 0; vector < sum.vector_count; ++vector) {
    const std::uint8_t* const record = sum.record(vector, offset);
    fetch_ahead<F>(record);
    largest = std::max(largest, scale_bits<F>(record));
  }
  if (largest > large_scale_bits) return add_plainly<F, T>(sum, offset, out);
  // In onebit, scales may be so small that the factor would cost their last bits: there it multiplies the sums.
  const float of_scales = F == QuantizedFormat::onebit ? 1 : sum.factor;
  const auto store = [&](Floats v, std::int64_t i) HWY_ATTR {
    if constexpr (F == QuantizedFormat::onebit) v = hn::Mul(v, hn::Set(GroupTag(), sum.factor));
    hwy::Prefetch(static_cast<std::byte*>(element<T>(out, i)) + fetch_distance);
    store_number<T>(v, element<T>(out, i));
  };
  for (std::int64_t chunk = 0; chunk < Chunks<F>::count; ++chunk) {
    Floats v0, v1, v2, v3;
    add_chunk<F, true>(sum.record(0, offset), chunk, of_scales, v0, v1, v2, v3);
    for (int vector = 1; vector < sum.vector_count; ++vector) {
      add_chunk<F, false>(sum.record(vector, offset), chunk, of_scales, v0, v1, v2, v3);
    }
    store(v0, Chunks<F>::at(chunk, 0));
    store(v1, Chunks<F>::at(chunk, 1));
    store(v2, Chunks<F>::at(chunk, 2));
    store(v3, Chunks<F>::at(chunk, 3));
  }
}

template <QuantizedFormat F, class T>
HWY_NOINLINE void add_groups(Sum sum, std::int64_t offset, void* out, std::int64_t groups) {
  for (std::int64_t i = 0; i < groups; ++i) {
    add_group<F, T>(sum, offset + i * record_bytes(F), element<T>(out, i * group_elements(F)));
  }
}

template <class T>
HWY_NOINLINE void store_batch(const float* values, std::int64_t divisor, std::int64_t there, void* out) {
  constexpr GroupTag d;
  const auto by = hn::Set(d, static_cast<float>(divisor));
  for_each_vector(d, there, [&](std::int64_t i, auto which) HWY_ATTR {
    const auto v = load_lanes(d, values + i, which);
    store_as<T>(d, divisor == 1 ? v : hn::Div(v, by), element<T>(out, i), which);
  });
}

template <QuantizedFormat F, class T>
void add_elements(const Sum& sum, std::int64_t offset, void* out, std::int64_t count) {
  alignas(64) float values[batch];
  for (std::int64_t begin = 0; begin < count; begin += batch, offset += packed_bytes(F, batch)) {
    const std::int64_t there = std::min(batch, count - begin);
    const std::int64_t groups = whole_groups(F, there) / group_elements(F);
    if constexpr (!std::is_same_v<T, f16>) {
      if (sum.divisor == 1 && there % group_elements(F) == 0) {
        add_groups<F, T>(sum, offset, element<T>(out, begin), groups);
        continue;
      }
    }
    add_groups<F, float>(sum, offset, values, groups);
    store_batch<T>(values, sum.divisor, there, element<T>(out, begin));
  }
}

}  // namespace

void dequantize_reduce_simd(QuantizedFormat format, const void* const* vectors, int vector_count, DType dtype, void* out,
                            std::int64_t count, std::int64_t divisor) {
  const Sum sum(vectors, vector_count, divisor);
  with_format(format, [&](auto f) {
    with_dtype(dtype, [&]<class T>(T) { add_elements<decltype(f)::value, T>(sum, 0, out, count); });
  });
}

#endif

}  // namespace stretto::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace stretto::kernels::cpu {

HWY_EXPORT(dequantize_reduce_simd);

void dequantize_reduce(QuantizedFormat format, const void* const* vectors, int vector_count, DType dtype, void* out,
                       std::int64_t count, std::int64_t divisor) {
  STRETTO_DISPATCH(dequantize_reduce_simd)(format, vectors, vector_count, dtype, out, count, divisor);
}

}  // namespace stretto::kernels::cpu
#endif
