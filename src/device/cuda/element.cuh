#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "core/narrow_floats.hpp"
#include "device/kernels/compute_types.hpp"

// Elements of any type in GPU memory: reading them as numbers, rounding numbers to elements, and moving 16 bytes at a time.
// Here a narrow float is the integer of its bits; stretto/dtype.hpp defines the formats.
namespace stretto::gpu_code {

using kernels::Accumulator;

template <class T>
struct RawOf {
  using type = T;
};
template <>
struct RawOf<bf16> {
  using type = std::uint16_t;
};
template <>
struct RawOf<f16> {
  using type = std::uint16_t;
};
template <>
struct RawOf<f8e4m3> {
  using type = std::uint8_t;
};
template <>
struct RawOf<f8e5m2> {
  using type = std::uint8_t;
};
template <class T>
using Raw = typename RawOf<T>::type;

// ---- numbers

template <class T>
__device__ inline Accumulator<T> widened(Raw<T> raw) {
  if constexpr (std::is_same_v<T, bf16>) {
    return __uint_as_float(static_cast<std::uint32_t>(raw) << 16);
  } else if constexpr (std::is_same_v<T, f16>) {
    return __half2float(__ushort_as_half(raw));
  } else if constexpr (std::is_same_v<T, f8e5m2>) {  // the upper half of an f16
    return __half2float(__ushort_as_half(static_cast<std::uint16_t>(raw << 8)));
  } else if constexpr (std::is_same_v<T, f8e4m3>) {
    return __half2float(__half(__nv_cvt_fp8_to_halfraw(raw, __NV_E4M3)));
  } else {
    return raw;
  }
}

// The GPU's conversions to 8 bits saturate; this corrects results beyond the largest number.
template <class T>
__device__ inline std::uint8_t rounded_to_8_bits(float value) {
  using Format = FloatFormatBits<T>;
  const std::uint32_t bits = __float_as_uint(value);
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude < Format::first_too_large_bits)
    return __nv_cvt_float_to_fp8(value, __NV_SATFINITE, std::is_same_v<T, f8e4m3> ? __NV_E4M3 : __NV_E5M2);
  const std::uint32_t sign = (bits >> Format::sign_shift) & Format::sign;
  return static_cast<std::uint8_t>(sign | (magnitude > Format::infinity ? Format::nan : Format::too_large));
}

// Floats round to nearest even, integers wrap.
template <class T>
__device__ inline Raw<T> rounded(Accumulator<T> value) {
  if constexpr (std::is_same_v<T, bf16>) {
    return __bfloat16_as_ushort(__float2bfloat16_rn(value));
  } else if constexpr (std::is_same_v<T, f16>) {
    return __half_as_ushort(__float2half_rn(value));
  } else if constexpr (std::is_same_v<T, f8e4m3> || std::is_same_v<T, f8e5m2>) {
    return rounded_to_8_bits<T>(value);
  } else {
    return static_cast<T>(value);
  }
}

// ---- memory

// Load from and store to any address.
template <class R>
__device__ inline R load_raw(const void* from) {
  if (reinterpret_cast<std::uintptr_t>(from) % sizeof(R) == 0) return *static_cast<const R*>(from);
  std::uint8_t bytes[sizeof(R)];
  for (std::size_t b = 0; b < sizeof(R); ++b) bytes[b] = static_cast<const std::uint8_t*>(from)[b];
  R value;
  memcpy(&value, bytes, sizeof value);
  return value;
}
template <class R>
__device__ inline void store_raw(void* to, R value) {
  if (reinterpret_cast<std::uintptr_t>(to) % sizeof(R) == 0) {
    *static_cast<R*>(to) = value;
    return;
  }
  std::uint8_t bytes[sizeof(R)];
  memcpy(bytes, &value, sizeof value);
  for (std::size_t b = 0; b < sizeof(R); ++b) static_cast<std::uint8_t*>(to)[b] = bytes[b];
}

// N consecutive elements.
template <class T, int N>
struct Pack {
  Raw<T> at[N];
};

// The numbers of a pack. Two bf16 are the halves of a word: extracting them one by one takes twice as many instructions.
template <class T, int N>
struct Numbers {
  Accumulator<T> at[N];
};
template <class T, int N>
__device__ inline Numbers<T, N> widened(const Pack<T, N>& pack) {
  Numbers<T, N> result;
  if constexpr (std::is_same_v<T, bf16> && N % 2 == 0) {
    std::uint32_t words[N / 2];
    memcpy(words, &pack, sizeof words);
#pragma unroll
    for (int n = 0; n < N; ++n) result.at[n] = __uint_as_float(n % 2 == 0 ? words[n / 2] << 16 : words[n / 2] & 0xffff0000U);
  } else {
#pragma unroll
    for (int n = 0; n < N; ++n) result.at[n] = widened<T>(pack.at[n]);
  }
  return result;
}

// The unit in which a pack is moved, and the alignment of its address: 16 bytes, or the size of a smaller pack.
constexpr std::size_t pack_alignment(std::size_t bytes) { return bytes < 16 ? bytes : 16; }
template <std::size_t bytes>
using PackWord =
    std::conditional_t<bytes >= 16, uint4,
                       std::conditional_t<bytes == 8, uint2,
                                          std::conditional_t<bytes == 4, std::uint32_t,
                                                             std::conditional_t<bytes == 2, std::uint16_t, std::uint8_t>>>>;

// A pack as loaded. Packs whose loads are in flight are kept as words: extracting elements would wait for the load, so it
// happens where the elements are used.
template <class T, int N>
struct Words {
  using Word = PackWord<sizeof(Pack<T, N>)>;
  static_assert(sizeof(Pack<T, N>) % sizeof(Word) == 0);
  Word at[sizeof(Pack<T, N>) / sizeof(Word)];

  __device__ Pack<T, N> pack() const {
    Pack<T, N> result;
    memcpy(&result, at, sizeof result);
    return result;
  }
};

// Loads the elements i ... i + N - 1 of x. A single element may be at any address, a larger pack only at its alignment.
template <class T, int N>
__device__ inline Words<T, N> load_words(const void* x, std::int64_t i) {
  using Word = typename Words<T, N>::Word;
  Words<T, N> result;
  const auto* const from = static_cast<const std::uint8_t*>(x) + i * static_cast<std::int64_t>(sizeof(Raw<T>));
  if constexpr (N == 1) {
    const Raw<T> raw = load_raw<Raw<T>>(from);
    memcpy(&result, &raw, sizeof raw);
  } else {
#pragma unroll
    for (std::size_t w = 0; w < sizeof result / sizeof(Word); ++w) result.at[w] = reinterpret_cast<const Word*>(from)[w];
  }
  return result;
}
template <class T, int N>
__device__ inline Pack<T, N> load(const void* x, std::int64_t i) {
  return load_words<T, N>(x, i).pack();
}

template <class T, int N>
__device__ inline void store(void* x, std::int64_t i, const Pack<T, N>& pack) {
  auto* const to = static_cast<std::uint8_t*>(x) + i * static_cast<std::int64_t>(sizeof(Raw<T>));
  if constexpr (N == 1) {
    store_raw(to, pack.at[0]);
  } else {
    using Word = PackWord<sizeof pack>;
    Word words[sizeof pack / sizeof(Word)];
    memcpy(words, &pack, sizeof pack);
#pragma unroll
    for (std::size_t w = 0; w < sizeof pack / sizeof(Word); ++w) reinterpret_cast<Word*>(to)[w] = words[w];
  }
}

}  // namespace stretto::gpu_code
