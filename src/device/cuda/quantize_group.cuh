#pragma once
#include "device/cpu/quantize_group.hpp"
#include "device/cuda/element.cuh"
#include "device/cuda/pointers.cuh"

// Groups of quantized elements on a GPU: the same records bit for bit as the host's (device/cpu/quantize_group.hpp says how
// they look, quantize_plain.cpp how they are made). Files that include this one are compiled without fusing products and
// sums. Records may lie anywhere; what is aligned is moved in words.
namespace stretto::gpu_code {

using kernels::DrawKey;
using kernels::infinity_bits;
using kernels::ScaleRule;
using kernels::sign_bit;

struct Four {
  float at[4];
};

__device__ inline std::uint32_t magnitude_bits(float x) { return __float_as_uint(x) & ~sign_bit; }
__device__ inline bool is_number(float x) { return magnitude_bits(x) < infinity_bits; }
__device__ inline bool is_negative(float x) { return (__float_as_uint(x) & sign_bit) != 0; }
__device__ inline float quiet_nan() { return __uint_as_float(0x7fc00000U); }

// ---- elements in memory

// Of f32, bf16 or f16.
__device__ inline float load_number(DType dtype, const void* x, std::int64_t i) {
  switch (dtype) {
    case DType::f32: return load<float, 1>(x, i).at[0];
    case DType::bf16: return widened<bf16>(load<bf16, 1>(x, i).at[0]);
    default: return widened<f16>(load<f16, 1>(x, i).at[0]);
  }
}
template <class T>
__device__ inline Four widened_four(const Pack<T, 4>& pack) {
  return {widened<T>(pack.at[0]), widened<T>(pack.at[1]), widened<T>(pack.at[2]), widened<T>(pack.at[3])};
}
__device__ inline Four load_four(DType dtype, const void* x, std::int64_t i) {
  switch (dtype) {
    case DType::f32: return widened_four(load<float, 4>(x, i));
    case DType::bf16: return widened_four(load<bf16, 4>(x, i));
    default: return widened_four(load<f16, 4>(x, i));
  }
}
// The first `there` of four; all of them at once where the address allows (`aligned`).
template <class T>
__device__ inline void store_rounded(void* out, std::int64_t i, const Four& v, std::int64_t there, bool aligned) {
  Pack<T, 4> pack;
#pragma unroll
  for (int j = 0; j < 4; ++j) pack.at[j] = rounded<T>(v.at[j]);
  if (aligned && there >= 4) return store<T, 4>(out, i, pack);
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    if (j < there) store<T, 1>(out, i + j, Pack<T, 1>{{pack.at[j]}});
  }
}

// ---- from elements to records, by a warp

struct GroupOptions {
  bool stochastic;
  std::uint64_t seed;
  std::uint64_t first_element;
  float* residual;  // or none
};
inline GroupOptions group_options(const kernels::QuantizeOptions& options) {
  return {options.rounding == Rounding::stochastic, options.seed, options.first_element, options.residual};
}

// The elements that a warp quantizes at a time: one group or some.
constexpr std::int64_t unit_elements(QuantizedFormat format) { return format == QuantizedFormat::onebit ? 2048 : 256; }

template <QuantizedFormat F>
struct Scale {
  bool special;
  float scale, inverse;

  __device__ Scale(std::uint32_t largest, bool is_special) : special(is_special) {
    constexpr ScaleRule usual = kernels::scale_rule(F, false);
    constexpr ScaleRule rare = kernels::scale_rule(F, true);
    constexpr std::uint32_t mask = (1U << usual.dropped_bits) - 1;
    const float exact = __uint_as_float(largest) / (special ? rare.range : usual.range);
    const float up = __uint_as_float((__float_as_uint(exact) + mask) & ~mask);
    scale = fminf(fmaxf(up, kernels::smallest_scale), special ? rare.largest_of_scale : usual.largest_of_scale);
    inverse = 1 / scale;
  }
  __device__ float stored() const { return special ? -scale : scale; }
  __device__ float range() const {
    constexpr ScaleRule usual = kernels::scale_rule(F, false);
    constexpr ScaleRule rare = kernels::scale_rule(F, true);
    return special ? rare.range : usual.range;
  }
};

__device__ inline std::uint32_t hash_of(const DrawKey& key, std::uint32_t lower) {
  constexpr std::uint32_t first = kernels::draw_factors[0];
  constexpr std::uint32_t second = kernels::draw_factors[1];
  std::uint32_t h = lower ^ key.before;
  h = (h ^ (h >> 16)) * first;
  h = ((h ^ (h >> 15)) + key.between) * second;
  return h ^ (h >> 16);
}

// The codes of four neighbours, the first of which is element i of the vector, as floats.
template <QuantizedFormat F>
__device__ inline Four integer_codes(const Four& x, const Scale<F>& scale, const GroupOptions& options, std::int64_t i) {
  constexpr kernels::FixedPoint point = kernels::fixed_point(F);
  const std::uint64_t number = options.first_element + static_cast<std::uint64_t>(i & ~std::int64_t{16});
  auto upper = static_cast<std::uint32_t>(number >> 32);
  DrawKey key(options.seed, upper);
  Four codes;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    if (!is_number(x.at[j])) {
      const bool nan = magnitude_bits(x.at[j]) > infinity_bits;
      const int infinite = is_negative(x.at[j]) ? -kernels::plus_infinity(F) : kernels::plus_infinity(F);
      codes.at[j] = static_cast<float>(nan ? kernels::not_a_number(F) : infinite);
    } else if (options.stochastic) {
      if (static_cast<std::uint32_t>((number + j) >> 32) != upper) {
        upper = static_cast<std::uint32_t>((number + j) >> 32);
        key = DrawKey(options.seed, upper);
      }
      const std::uint32_t hash = hash_of(key, static_cast<std::uint32_t>(number + j));
      const std::uint32_t drawn =
          (i & 16) == 0 ? hash & ((1U << point.fraction_bits) - 1) : hash >> (32 - point.fraction_bits);
      const float range = scale.range();
      const float y = fminf(fmaxf(x.at[j] * scale.inverse + point.zero, point.zero - range), point.zero + range);
      codes.at[j] = static_cast<float>(static_cast<int>((__float_as_uint(y) + drawn) >> point.fraction_bits) -
                                       static_cast<int>(__float_as_uint(point.zero) >> point.fraction_bits));
    } else {
      float code = (x.at[j] * scale.inverse + kernels::integer_rounder) - kernels::integer_rounder;
      // Or the neighbour, where too much would be left.
      const float left = x.at[j] - code * scale.scale;
      if (left > scale.scale / 2) {
        code = code + 1;
      } else if (left < -(scale.scale / 2)) {
        code = code - 1;
      }
      codes.at[j] = code;
    }
  }
  return codes;
}

// The bits of four codes in fp8; what they stand for, without the scale, replaces the codes.
__device__ inline std::uint32_t float_codes(const Four& x, const Scale<QuantizedFormat::fp8>& scale, Four& codes) {
  std::uint32_t word = 0;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const float y = x.at[j] * scale.inverse;
    std::uint8_t bits;
    if (scale.special) {
      bits = rounded<f8e5m2>(y != y ? quiet_nan() : y);  // NaN of one sign
      codes.at[j] = widened<f8e5m2>(bits);
    } else {
      bits = rounded<f8e4m3>(y);
      codes.at[j] = widened<f8e4m3>(bits);
    }
    word |= static_cast<std::uint32_t>(bits) << (8 * j);
  }
  return word;
}

__device__ inline void store_left(const GroupOptions& options, const Four& x, const Four& codes, float scale, std::int64_t i,
                                  std::int64_t count) {
  if (options.residual == nullptr) return;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    if (i + j < count) options.residual[i + j] = is_number(x.at[j]) ? x.at[j] - codes.at[j] * scale : 0;
  }
}

// int8, fp8: one group. A lane takes 4 neighbours of each half, so that loads and stores are of neighbouring words.
template <QuantizedFormat F, class Source>
__device__ inline void quantize_256(const Source& source, std::int64_t first, std::int64_t count, std::uint8_t* records,
                                    const GroupOptions& options) {
  const unsigned lane = threadIdx.x % 32;
  Four x[2];
  std::uint32_t largest = 0;
  bool special = false;
#pragma unroll
  for (int part = 0; part < 2; ++part) x[part] = source.four(first + 128 * part + 4 * lane);
#pragma unroll
  for (int part = 0; part < 2; ++part) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const std::uint32_t bits = magnitude_bits(x[part].at[j]);
      if (bits >= infinity_bits) {
        special = true;
      } else {
        largest = max(largest, bits);
      }
    }
  }
  const Scale<F> scale(__reduce_max_sync(0xffffffffU, largest), __any_sync(0xffffffffU, special) != 0);
  std::uint8_t* const record = records + first / 256 * record_bytes(F);
  if (lane == 0) store_raw(record, scale.stored());
#pragma unroll
  for (int part = 0; part < 2; ++part) {
    const std::int64_t i = first + 128 * part + 4 * lane;
    Four codes;
    std::uint32_t word = 0;
    if constexpr (F == QuantizedFormat::fp8) {
      word = float_codes(x[part], scale, codes);
    } else {
      codes = integer_codes<F>(x[part], scale, options, i);
#pragma unroll
      for (int j = 0; j < 4; ++j) word |= (static_cast<std::uint32_t>(static_cast<int>(codes.at[j])) & 0xffU) << (8 * j);
    }
    store_raw(record + 4 + 128 * part + 4 * lane, word);
    store_left(options, x[part], codes, scale.scale, i, count);
  }
}

// int4: four groups, two at a time; half of the warp takes one, each lane 4 neighbours.
template <class Source>
__device__ inline void quantize_int4(const Source& source, std::int64_t first, std::int64_t count, std::uint8_t* records,
                                     const GroupOptions& options) {
  constexpr QuantizedFormat F = QuantizedFormat::int4;
  const unsigned lane = threadIdx.x % 32;
  const unsigned of_half = lane % 16;
  Four x[2];
#pragma unroll
  for (int part = 0; part < 2; ++part) x[part] = source.four(first + 128 * part + 4 * lane);
#pragma unroll
  for (int part = 0; part < 2; ++part) {
    std::uint32_t largest = 0;
    bool special = false;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const std::uint32_t bits = magnitude_bits(x[part].at[j]);
      if (bits >= infinity_bits) {
        special = true;
      } else {
        largest = max(largest, bits);
      }
    }
#pragma unroll
    for (int distance = 8; distance > 0; distance /= 2)
      largest = max(largest, __shfl_xor_sync(0xffffffffU, largest, distance));
    const unsigned specials = __ballot_sync(0xffffffffU, special) >> (lane & 16) & 0xffffU;
    const Scale<F> scale(largest, specials != 0);
    const std::int64_t i = first + 128 * part + 4 * lane;
    const Four codes = integer_codes<F>(x[part], scale, options, i);
    // Element e of the group is bits 4 (e / 16) and up of word e % 16: lanes 4 apart have the same words.
    unsigned long long words = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j)
      words |= static_cast<unsigned long long>(static_cast<int>(codes.at[j]) & 15) << (16 * j + 4 * (of_half / 4));
    words |= __shfl_xor_sync(0xffffffffU, words, 4);
    words |= __shfl_xor_sync(0xffffffffU, words, 8);
    if (first + 128 * part + 64 * (lane / 16) >= count) continue;  // no such group
    std::uint8_t* const record = records + i / 64 * record_bytes(F);
    if (of_half == 0) store_raw(record, static_cast<std::uint16_t>(__float_as_uint(scale.stored()) >> 16));
    const unsigned word = 4 * (of_half % 4) + of_half / 4;
    store_raw(record + 2 + 2 * word, static_cast<std::uint16_t>(words >> (16 * (of_half / 4))));
    store_left(options, x[part], codes, scale.scale, i, count);
  }
}

// onebit: two groups; half of the warp takes one, each lane every 16th element in turn: so are the sums to be formed.
template <class Source>
__device__ inline void quantize_onebit(const Source& source, std::int64_t first, std::int64_t count, std::uint8_t* records,
                                       const GroupOptions& options) {
  constexpr std::int64_t group = 1024;
  static_assert(kernels::mean_lanes == 16);
  const unsigned lane = threadIdx.x % 32;
  const unsigned of_half = lane % 16;
  const std::int64_t begin = first + group * (lane / 16);
  float sum = 0;
  std::uint32_t low_word = 0;   // of the signs: word of_half of the group, and
  std::uint32_t high_word = 0;  // word 16 + of_half
#pragma unroll 8
  for (int k = 0; k < 64; ++k) {
    const float x = source.one(begin + 16 * k + of_half);
    sum += fabsf(x) * kernels::mean_factor;
    const unsigned signs = __ballot_sync(0xffffffffU, is_negative(x)) >> (lane & 16) & 0xffffU;
    if (of_half == static_cast<unsigned>(k / 2 % 16)) {
      if (k < 32) {
        low_word |= signs << (k % 2 * 16);
      } else {
        high_word |= signs << (k % 2 * 16);
      }
    }
  }
#pragma unroll
  for (int distance = 8; distance > 0; distance /= 2) sum += __shfl_xor_sync(0xffffffffU, sum, distance);
  if (begin >= count) return;  // no such group
  const float there = static_cast<float>(count - begin < group ? count - begin : group);
  const bool finite = is_number(sum);
  const float scale =
      finite ? fminf(sum * (1 / kernels::mean_factor / there), __uint_as_float(infinity_bits - 1)) : quiet_nan();
  std::uint8_t* const record = records + begin / group * record_bytes(QuantizedFormat::onebit);
  if (of_half == 0) store_raw(record, scale);
  store_raw(record + 4 + 4 * of_half, finite ? low_word : 0U);
  store_raw(record + 4 + 64 + 4 * of_half, finite ? high_word : 0U);
  if (options.residual == nullptr) return;
  for (int k = 0; k < 64; ++k) {
    const std::int64_t i = begin + 16 * k + of_half;
    if (i >= count) break;
    const float x = source.one(i);
    options.residual[i] = finite ? x - (is_negative(x) ? -scale : scale) : 0;
  }
}

// The records of the groups among the unit's elements first ... that are below count. A source has four(i) and one(i): the
// elements from i on with their residual, and zeros behind the last.
template <QuantizedFormat F, class Source>
__device__ inline void quantize_unit(const Source& source, std::int64_t first, std::int64_t count, std::uint8_t* records,
                                     const GroupOptions& options) {
  if constexpr (F == QuantizedFormat::onebit) {
    quantize_onebit(source, first, count, records, options);
  } else if constexpr (F == QuantizedFormat::int4) {
    quantize_int4(source, first, count, records, options);
  } else {
    quantize_256<F>(source, first, count, records, options);
  }
}

// ---- from records to elements, by a thread

// What four neighbours stand for; i is a multiple of 4.
template <QuantizedFormat F>
__device__ inline Four dequantized_four(const void* records, std::int64_t i) {
  constexpr std::int64_t group = group_elements(F);
  const std::uint8_t* const record = static_cast<const std::uint8_t*>(records) + i / group * record_bytes(F);
  const auto e = static_cast<unsigned>(i % group);
  Four out;
  if constexpr (F == QuantizedFormat::onebit) {
    const float scale = fabsf(load_raw<float>(record));
    const std::uint32_t signs = load_raw<std::uint32_t>(record + 4 + e / 32 * 4) >> (e % 32);
#pragma unroll
    for (int j = 0; j < 4; ++j) out.at[j] = scale * ((signs >> j & 1U) != 0 ? -1.0F : 1.0F);
  } else if constexpr (F == QuantizedFormat::fp8) {
    const float stored = load_raw<float>(record);
    const std::uint32_t word = load_raw<std::uint32_t>(record + 4 + e);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const auto bits = static_cast<std::uint8_t>(word >> (8 * j));
      out.at[j] = fabsf(stored) * (is_negative(stored) ? widened<f8e5m2>(bits) : widened<f8e4m3>(bits));
    }
  } else {
    float stored;
    int codes[4];
    if constexpr (F == QuantizedFormat::int8) {
      stored = load_raw<float>(record);
      const std::uint32_t word = load_raw<std::uint32_t>(record + 4 + e);
#pragma unroll
      for (int j = 0; j < 4; ++j) codes[j] = static_cast<std::int8_t>(word >> (8 * j));
    } else {
      stored = widened<bf16>(load_raw<std::uint16_t>(record));
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const unsigned word = load_raw<std::uint16_t>(record + 2 + 2 * (e % 16 + j));
        codes[j] = static_cast<int>((word >> (e / 16 * 4) & 15U) ^ 8U) - 8;
      }
    }
    const bool special = is_negative(stored);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      out.at[j] = static_cast<float>(codes[j]) * fabsf(stored);
      if (special && codes[j] == kernels::not_a_number(F)) out.at[j] = quiet_nan();
      if (special && codes[j] == kernels::plus_infinity(F)) out.at[j] = __uint_as_float(infinity_bits);
      if (special && codes[j] == -kernels::plus_infinity(F)) out.at[j] = __uint_as_float(infinity_bits | sign_bit);
    }
  }
  return out;
}

// The same of several vectors of records, added in their order and divided.
template <QuantizedFormat F>
__device__ inline Four sum_of_four(const Pointers& vectors, int vector_count, float divisor, std::int64_t i) {
  Four sum = dequantized_four<F>(vectors[0], i);
#pragma unroll 4
  for (int vector = 1; vector < vector_count; ++vector) {
    const Four term = dequantized_four<F>(vectors[vector], i);
#pragma unroll
    for (int j = 0; j < 4; ++j) sum.at[j] += term.at[j];
  }
  if (divisor != 1) {
#pragma unroll
    for (int j = 0; j < 4; ++j) sum.at[j] /= divisor;
  }
  return sum;
}

}  // namespace stretto::gpu_code
