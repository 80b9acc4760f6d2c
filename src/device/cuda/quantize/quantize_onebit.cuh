#pragma once
#include "device/cuda/quantize/quantize_group.cuh"

// Quantizes groups to onebit. Each half of a warp takes one group, and each lane every 16th element: the sums of a record
// are defined in that order.
namespace stretto::gpu_code {

constexpr std::int64_t onebit_unit = 2048;  // elements that a warp quantizes at a time

// Transposes the bits within each half of the warp: bit i of lane j becomes bit j of lane i, and bits 16 + i likewise.
__device__ inline std::uint32_t transposed_bits(std::uint32_t word) {
#pragma unroll
  for (unsigned distance = 8; distance > 0; distance /= 2) {
    const std::uint32_t low = 0xffffffffU / ((1U << distance) + 1);  // the bits whose numbers do not contain `distance`
    const bool is_high = (threadIdx.x & distance) != 0;
    const std::uint32_t kept = is_high ? ~low : low;
    const std::uint32_t other = __shfl_xor_sync(0xffffffffU, word, static_cast<int>(distance));
    word = (word & kept) | (__funnelshift_l(other, other, is_high ? 32 - distance : distance) & ~kept);
  }
  return word;
}

// A source has one(i): element i with its residual, or zero beyond the last. It may also have column(i, x), which fills x
// with the elements i, i + 16, i + 32, ...; all threads of the warp call it together.
template <int batch, class Source>
__device__ inline void quantize_onebit(const Source& source, std::int64_t first, std::int64_t count, std::uint8_t* records,
                                       float* residual) {
  constexpr std::int64_t group = 1024;
  static_assert(kernels::mean_lanes == 16);
  const unsigned lane = threadIdx.x % 32;
  const unsigned of_half = lane % 16;
  const std::int64_t begin = first + group * (lane / 16);
  float sum = 0;
  std::uint32_t words[2];  // sign bits: this lane's word of the group's first half and of its second
#pragma unroll
  for (int part = 0; part < 2; ++part) {
    std::uint32_t signs[2] = {0, 0};  // sign bits of alternating elements, the last in the lowest bit
#pragma unroll 1
    for (int done = 0; done < 32; done += batch) {
      float x[batch];
      const std::int64_t i = begin + 16 * (32 * part + done) + of_half;
      if constexpr (requires { source.column(i, x); }) {
        source.column(i, x);
      } else {
#pragma unroll
        for (int k = 0; k < batch; ++k) x[k] = source.one(i + 16 * k);
      }
#pragma unroll
      for (int k = 0; k < batch; ++k) {
        sum += fabsf(x[k]) * kernels::mean_factor;
        signs[k % 2] = __funnelshift_l(__float_as_uint(x[k]), signs[k % 2], 1);
      }
    }
    words[part] = transposed_bits(__brev(signs[0] << 16 | signs[1]));
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
  store_raw(record + 4 + 4 * of_half, finite ? words[0] : 0U);
  store_raw(record + 4 + 64 + 4 * of_half, finite ? words[1] : 0U);
  if (residual == nullptr) return;
  for (int k = 0; k < 64; ++k) {
    const std::int64_t i = begin + 16 * k + of_half;
    if (i >= count) break;
    const float x = source.one(i);
    residual[i] = finite ? x - (is_negative(x) ? -scale : scale) : 0;
  }
}

}  // namespace stretto::gpu_code
