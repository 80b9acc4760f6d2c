#pragma once
#include "device/cuda/launch.cuh"

// The second half of sums over rows: blocks have left sums over some rows each, and these are added in their order, so that
// the result is the same at each call.
namespace stretto::gpu_code {

constexpr int slices = 8;

// sums[c] += the sum over i of parts[i * stride + c].
template <class A>
__global__ void __launch_bounds__(32 * slices)
    add_partial_sums(const A* parts, std::int64_t count, std::int64_t stride, A* sums, std::int64_t columns) {
  __shared__ A of_slices[slices][32];
  const std::int64_t c = static_cast<std::int64_t>(blockIdx.x) * 32 + threadIdx.x;
  const std::int64_t each = (count + slices - 1) / slices;
  const std::int64_t begin = threadIdx.y * each;
  const std::int64_t end = begin + each < count ? begin + each : count;
  A sum = 0;
  if (c < columns) {
#pragma unroll 4
    for (std::int64_t i = begin; i < end; ++i) sum += parts[i * stride + c];
  }
  of_slices[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || c >= columns) return;
  for (int slice = 1; slice < slices; ++slice) sum += of_slices[slice][threadIdx.x];
  sums[c] += sum;
}

template <class A>
void launch_add_partial_sums(const A* parts, std::int64_t count, std::int64_t stride, A* sums, std::int64_t columns,
                             GpuStream stream) {
  launch("add sums of rows", add_partial_sums<A>, static_cast<unsigned>(divided_up(columns, 32)), dim3(32, slices), stream,
         parts, count, stride, sums, columns);
}

}  // namespace stretto::gpu_code
