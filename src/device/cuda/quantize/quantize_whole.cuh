#pragma once
#include "device/cuda/quantize/quantize_group.cuh"

// The usual case of int8, int4 and fp8, designed to be limited by memory alone: whole groups of aligned elements, rounded to
// nearest, without a residual, none of them special. quantize_group.cuh handles all other cases. A warp takes 2 KiB of
// elements at a time, four packs of 16 bytes for each lane, whose loads are all in flight before the first is used. As few
// lanes as possible share a group, since each of them computes its scale. Records are assembled in shared memory, because
// the words in which lanes produce their bytes are not the words in which they are stored.
namespace stretto::gpu_code {

template <QuantizedFormat F, class T>
struct WholeGroups {
  static constexpr int packs = 4;
  static constexpr int neighbours = 16 / sizeof(Raw<T>);                                    // elements of a pack
  static constexpr int lanes = static_cast<int>(group_elements(F)) / (packs * neighbours);  // lanes that share a group
  static constexpr int elements = 32 * packs * neighbours;
  static constexpr int words = static_cast<int>(packed_bytes(F, elements)) / 4;  // of the records of all elements
};

// The elements of one lane, as they are in memory.
template <class T>
struct LanePacks {
  static constexpr bool narrow = sizeof(Raw<T>) == 2;
  Pack<std::uint32_t, 4> packs[4];

  __device__ float element(int pack, int i) const {
    if constexpr (narrow) return widened<T>(static_cast<Raw<T>>(packs[pack].at[i / 2] >> (i % 2 * 16)));
    return __uint_as_float(packs[pack].at[i]);
  }
  // The largest |x|, as the bits of a float; NaN compares greater than any number. In each type the order of magnitudes is
  // the order of their bits, so that two narrow elements are compared at a time.
  __device__ std::uint32_t largest_magnitude() const {
    std::uint32_t largest = 0;
#pragma unroll
    for (const Pack<std::uint32_t, 4>& pack : packs) {
#pragma unroll
      for (const std::uint32_t word : pack.at)
        largest = narrow ? __vmaxu2(largest, word & 0x7fff7fffU) : max(largest, word & ~sign_bit);
    }
    if constexpr (narrow) return __float_as_uint(widened<T>(static_cast<Raw<T>>(max(largest & 0xffffU, largest >> 16))));
    return largest;
  }
};

// The codes of integer_codes (quantize_group.cuh), provided that `left`, the largest remainder of an element, stays within
// the limit. The product of a code and the scale is exact, and may be fused.
template <QuantizedFormat F>
struct NearestCodes {
  const Scale<F>& scale;
  float left = 0;

  // code + integer_rounder: the lowest bits are the code's.
  __device__ float shifted(float x) {
    const float result = x * scale.inverse + kernels::integer_rounder;
    left = fmaxf(left, fabsf(__fmaf_rn(-(result - kernels::integer_rounder), scale.scale, x)));
    return result;
  }
  __device__ std::uint32_t of_four(const Four& x) {
    const std::uint32_t low = __byte_perm(__float_as_uint(shifted(x.at[0])), __float_as_uint(shifted(x.at[1])), 0x0040);
    const std::uint32_t high = __byte_perm(__float_as_uint(shifted(x.at[2])), __float_as_uint(shifted(x.at[3])), 0x0040);
    return __byte_perm(low, high, 0x5410);
  }
  __device__ bool are_right() const { return left <= kernels::nearest_limit(scale.scale); }
};

// In a group without infinity and NaN, every element times the inverse scale is within the range of f8e4m3.
template <>
struct NearestCodes<QuantizedFormat::fp8> {
  const Scale<QuantizedFormat::fp8>& scale;

  __device__ std::uint32_t of_four(const Four& x) {
    std::uint32_t word = 0;
#pragma unroll
    for (int j = 0; j < 4; j += 2) {
      const float2 two = make_float2(x.at[j] * scale.inverse, x.at[j + 1] * scale.inverse);
      word |= static_cast<std::uint32_t>(__nv_cvt_float2_to_fp8x2(two, __NV_SATFINITE, __NV_E4M3)) << (8 * j);
    }
    return word;
  }
  __device__ bool are_right() const { return true; }
};

// int8, fp8: four codes in each word, pack after pack.
template <class Groups, class Codes, class T>
__device__ inline void put_bytes(const LanePacks<T>& x, Codes& codes, unsigned of_group, std::uint8_t* record) {
#pragma unroll
  for (int p = 0; p < Groups::packs; ++p) {
    const auto words = reinterpret_cast<std::uint32_t*>(record + 4 + Groups::neighbours * (Groups::lanes * p + of_group));
#pragma unroll
    for (int j = 0; j < Groups::neighbours; j += 4) {
      words[j / 4] = codes.of_four({x.element(p, j), x.element(p, j + 1), x.element(p, j + 2), x.element(p, j + 3)});
    }
  }
}

// int4: element j of each of a lane's four packs goes into the same word of 16 bits.
template <class Groups, class Codes, class T>
__device__ inline void put_nibbles(const LanePacks<T>& x, Codes& codes, unsigned of_group, std::uint8_t* record) {
  static_assert(Groups::packs == 4 && Groups::lanes * Groups::neighbours == 16);
  const auto words = reinterpret_cast<std::uint16_t*>(record + 2 + 2 * Groups::neighbours * of_group);
#pragma unroll
  for (int j = 0; j < Groups::neighbours; ++j) {
    float sum = codes.shifted(x.element(3, j)) - kernels::integer_rounder;
#pragma unroll
    for (int p = 2; p > 0; --p) sum = __fmaf_rn(sum, 16, codes.shifted(x.element(p, j)) - kernels::integer_rounder);
    sum = __fmaf_rn(sum, 16, codes.shifted(x.element(0, j)));
    // Adding 8 to each code prevents borrows between codes; the xor of that bit afterwards restores the code's four bits.
    words[j] = static_cast<std::uint16_t>((__float_as_uint(sum) + 0x8888U) ^ 0x8888U);
  }
}

// Makes the records of the warp's elements, from element `first` of x on, if they are the usual case; otherwise does nothing
// and returns false. `staged`: shared memory of the warp.
template <QuantizedFormat F, class T>
__device__ inline bool quantize_whole(const void* x, std::int64_t first, std::uint8_t* records, std::uint32_t* staged) {
  using Groups = WholeGroups<F, T>;
  const unsigned lane = threadIdx.x % 32;
  const unsigned group = lane / Groups::lanes;
  const unsigned of_group = lane % Groups::lanes;
  constexpr std::int64_t of_word = 4 / sizeof(Raw<T>);
  const std::int64_t begin = (first + group * group_elements(F)) / of_word + 4 * of_group;
  LanePacks<T> lane_packs;
#pragma unroll
  for (int p = 0; p < Groups::packs; ++p) lane_packs.packs[p] = load<std::uint32_t, 4>(x, begin + 4 * Groups::lanes * p);
  std::uint32_t largest = lane_packs.largest_magnitude();
#pragma unroll
  for (int distance = Groups::lanes / 2; distance > 0; distance /= 2)
    largest = max(largest, __shfl_xor_sync(0xffffffffU, largest, distance));
  const Scale<F> scale(largest, false);
  NearestCodes<F> codes{scale};
  std::uint8_t* const record = reinterpret_cast<std::uint8_t*>(staged) + group * record_bytes(F);
  if constexpr (F == QuantizedFormat::int4) {
    if (of_group == 0) *reinterpret_cast<std::uint16_t*>(record) = __float_as_uint(scale.scale) >> 16;
    put_nibbles<Groups>(lane_packs, codes, of_group, record);
  } else {
    if (of_group == 0) *reinterpret_cast<float*>(record) = scale.scale;
    put_bytes<Groups>(lane_packs, codes, of_group, record);
  }
  if (__any_sync(0xffffffffU, largest >= infinity_bits || !codes.are_right()) != 0) return false;
  __syncwarp();
  const auto out = reinterpret_cast<std::uint32_t*>(records + packed_bytes(F, first));
#pragma unroll
  for (int word = 0; word < Groups::words; word += 32) {
    if (word + lane < Groups::words) out[word + lane] = staged[word + lane];
  }
  __syncwarp();  // before the next records are staged
  return true;
}

}  // namespace stretto::gpu_code
