#pragma once
#include "device/cuda/quantize/quantized_four.cuh"

// Quantizes groups of elements, each by a warp, to the same records bit for bit as the host's. For their layout see
// device/kernels/quantized_records.hpp, for the computation device/cpu/quantize/quantize_plain.cpp. Records may be at any
// address; aligned data are moved in words.
namespace stretto::gpu_code {

using kernels::DrawKey;
using kernels::ScaleRule;

struct GroupOptions {
  bool stochastic;
  std::uint64_t seed;
  std::uint64_t first_element;
  float* residual;  // or none
};
inline GroupOptions group_options(const kernels::QuantizeOptions& options) {
  return {options.rounding == Rounding::stochastic, options.seed, options.first_element, options.residual};
}

constexpr std::int64_t unit_elements = 256;  // elements that a warp quantizes at a time: one group or several

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

// The codes, as floats, of four consecutive elements, beginning with element i of the vector.
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
      const std::uint32_t hash = kernels::draw(key, static_cast<std::uint32_t>(number + j));
      const std::uint32_t drawn =
          (i & 16) == 0 ? hash & ((1U << point.fraction_bits) - 1) : hash >> (32 - point.fraction_bits);
      const float range = scale.range();
      const float y = fminf(fmaxf(x.at[j] * scale.inverse + point.zero, point.zero - range), point.zero + range);
      codes.at[j] = static_cast<float>(static_cast<int>((__float_as_uint(y) + drawn) >> point.fraction_bits) -
                                       static_cast<int>(__float_as_uint(point.zero) >> point.fraction_bits));
    } else {
      float code = (x.at[j] * scale.inverse + kernels::integer_rounder) - kernels::integer_rounder;
      // Takes the neighbouring code if this one leaves too much of x.
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

// The bits of four codes in fp8; `codes` gets their values without the scale.
__device__ inline std::uint32_t float_codes(const Four& x, const Scale<QuantizedFormat::fp8>& scale, Four& codes) {
  std::uint32_t word = 0;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const float y = x.at[j] * scale.inverse;
    std::uint8_t bits;
    if (scale.special) {
      bits = rounded<f8e5m2>(y != y ? quiet_nan() : y);  // NaN with one sign
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

// int8, fp8: one group. A lane takes 4 consecutive elements of each half, so that the warp loads and stores consecutive
// words.
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

// int4: four groups, two at a time. Each half of the warp takes one, each lane 4 consecutive elements.
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
    // The code of element e is in word e % 16, from bit 4 (e / 16) on: lanes that are 4 apart share words.
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

// Makes the records of a unit, which begins at element `first`; elements from `count` on do not exist. A source has four(i):
// four elements from i on with their residual, and zeros beyond the last.
template <QuantizedFormat F, class Source>
__device__ inline void quantize_unit(const Source& source, std::int64_t first, std::int64_t count, std::uint8_t* records,
                                     const GroupOptions& options) {
  if constexpr (F == QuantizedFormat::int4) {
    quantize_int4(source, first, count, records, options);
  } else {
    quantize_256<F>(source, first, count, records, options);
  }
}

}  // namespace stretto::gpu_code
