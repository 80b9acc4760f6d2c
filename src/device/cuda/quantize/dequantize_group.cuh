#pragma once
#include "device/cuda/pointers.cuh"
#include "device/cuda/quantize/quantized_four.cuh"

// The elements of quantized groups, computed by single threads. Records may be at any address; aligned data are moved in
// words.
namespace stretto::gpu_code {

// Four consecutive elements; i is a multiple of 4.
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

// Like dequantized_four, summed over several vectors of records in their order, then divided.
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
