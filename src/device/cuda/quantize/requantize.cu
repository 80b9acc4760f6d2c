// Sums of several vectors of records, quantized again: a warp computes the sums of 2048 elements, which are whole groups of
// every format, in shared memory, and quantizes them from there.
#include "device/cuda/cuda_kernels.hpp"
#include "device/cuda/quantize/dequantize_group.cuh"
#include "device/cuda/quantize/quantize_group.cuh"
#include "device/cuda/quantize/quantize_onebit.cuh"
#include "device/kernels/quantize_arguments.hpp"

namespace stretto {
namespace gpu_code {
namespace {

constexpr int threads = 128;
constexpr std::int64_t chunk = 2 * kernels::largest_group;

struct Sums {
  const float* values;  // from element first on
  std::int64_t first;
  const float* residual;  // or none
  std::int64_t count;

  __device__ float one(std::int64_t i) const {
    if (i >= count) return 0;
    const float sum = values[i - first];
    return residual == nullptr ? sum : sum + residual[i];
  }
  __device__ Four four(std::int64_t i) const { return {one(i), one(i + 1), one(i + 2), one(i + 3)}; }
};

template <QuantizedFormat F>
__device__ inline void sum_chunk(const Pointers& vectors, int vector_count, float divisor, std::int64_t first,
                                 std::int64_t count, float* values) {
  for (std::int64_t i = 4 * (threadIdx.x % 32); i < chunk && first + i < count; i += 4 * 32) {
    const Four sum = sum_of_four<F>(vectors, vector_count, divisor, first + i);
    *reinterpret_cast<float4*>(values + i) = make_float4(sum.at[0], sum.at[1], sum.at[2], sum.at[3]);
  }
}

template <QuantizedFormat F>
__device__ inline void quantize_chunk(const Sums& sums, std::uint8_t* records, const GroupOptions& options) {
  if constexpr (F == QuantizedFormat::onebit) {
    static_assert(chunk == onebit_unit);
    quantize_onebit<8>(sums, sums.first, sums.count, records, options.residual);
  } else {
    for (std::int64_t i = sums.first; i < sums.first + chunk && i < sums.count; i += unit_elements)
      quantize_unit<F>(sums, i, sums.count, records, options);
  }
}

__global__ void __launch_bounds__(threads)
    requantize_kernel(QuantizedFormat from, const __grid_constant__ Pointers vectors, int vector_count, float divisor,
                      QuantizedFormat to, std::uint8_t* records, std::int64_t count, const GroupOptions options) {
  __shared__ float4 of_warps[threads / 32][chunk / 4];
  float* const values = reinterpret_cast<float*>(of_warps[threadIdx.x / 32]);
  const std::int64_t warp = (static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x) / 32;
  const std::int64_t warps = static_cast<std::int64_t>(gridDim.x) * (threads / 32);
  for (std::int64_t first = warp * chunk; first < count; first += warps * chunk) {
    switch (from) {
      case QuantizedFormat::int8:
        sum_chunk<QuantizedFormat::int8>(vectors, vector_count, divisor, first, count, values);
        break;
      case QuantizedFormat::int4:
        sum_chunk<QuantizedFormat::int4>(vectors, vector_count, divisor, first, count, values);
        break;
      case QuantizedFormat::fp8:
        sum_chunk<QuantizedFormat::fp8>(vectors, vector_count, divisor, first, count, values);
        break;
      default: sum_chunk<QuantizedFormat::onebit>(vectors, vector_count, divisor, first, count, values); break;
    }
    __syncwarp();
    const Sums sums{values, first, options.residual, count};
    switch (to) {
      case QuantizedFormat::int8: quantize_chunk<QuantizedFormat::int8>(sums, records, options); break;
      case QuantizedFormat::int4: quantize_chunk<QuantizedFormat::int4>(sums, records, options); break;
      case QuantizedFormat::fp8: quantize_chunk<QuantizedFormat::fp8>(sums, records, options); break;
      default: quantize_chunk<QuantizedFormat::onebit>(sums, records, options); break;
    }
    __syncwarp();
  }
}

}  // namespace
}  // namespace gpu_code

using namespace gpu_code;

void CudaKernels::requantize(QuantizedFormat format, const void* const* vectors, int vector_count, QuantizedFormat to,
                             void* records, std::int64_t count, std::int64_t divisor,
                             const kernels::QuantizeOptions& options, GpuStream stream) {
  kernels::check_sum_arguments(format, vector_count, DType::f32, divisor);
  kernels::check_quantize_arguments(to, DType::f32, options);
  if (count <= 0) return;
  const PointersFor all(vectors, vector_count, stream);
  const std::int64_t blocks = divided_up(divided_up(count, chunk), threads / 32);
  launch("quantize sums of records", requantize_kernel, blocks_for(blocks, 8), threads, stream, format, all.get(),
         vector_count, static_cast<float>(divisor), to, static_cast<std::uint8_t*>(records), count, group_options(options));
}

}  // namespace stretto
