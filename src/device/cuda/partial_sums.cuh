#pragma once
#include "device/cuda/element.cuh"
#include "device/cuda/launch.cuh"

// The second half of sums over rows: each block has left the sums over some rows, and these are added in block order, so
// that the result is the same at each call.
namespace stretto::gpu_code {

constexpr int slices = 32;
constexpr int parts_together = 8;  // loads in flight

// The destinations of M vector sums, gradients of type G. Each part has the columns of the first vector, then those of the
// next.
template <class G, int M>
struct Sums {
  void* of[M];
};

// sums.of[m][c] += the sum over i of parts[i][m][c]; m is blockIdx.y.
template <class G, int M, class A = Accumulator<G>>
__global__ void __launch_bounds__(32 * slices)
    add_partial_sums(const A* parts, std::int64_t count, const __grid_constant__ Sums<G, M> sums, std::int64_t columns) {
  __shared__ A of_slices[slices][32];
  const std::int64_t c = static_cast<std::int64_t>(blockIdx.x) * 32 + threadIdx.x;
  const std::int64_t each = (count + slices - 1) / slices;
  const std::int64_t begin = threadIdx.y * each;
  const std::int64_t end = begin + each < count ? begin + each : count;
  A sum = 0;
  for (std::int64_t first = begin; first < end && c < columns; first += parts_together) {
    A terms[parts_together];
#pragma unroll
    for (int u = 0; u < parts_together; ++u) {
      terms[u] = first + u < end ? parts[((first + u) * M + blockIdx.y) * columns + c] : A{0};
    }
#pragma unroll
    for (int u = 0; u < parts_together; ++u) sum += terms[u];
  }
  of_slices[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || c >= columns) return;
  for (int slice = 1; slice < slices; ++slice) sum += of_slices[slice][threadIdx.x];
  auto* const to = static_cast<Raw<G>*>(sums.of[blockIdx.y]) + c;
  *to = rounded<G>(widened<G>(*to) + sum);
}

template <class G, int M>
void launch_add_partial_sums(const Accumulator<G>* parts, std::int64_t count, const Sums<G, M>& sums, std::int64_t columns,
                             GpuStream stream) {
  launch("add sums of rows", add_partial_sums<G, M>, dim3(static_cast<unsigned>(divided_up(columns, 32)), M),
         dim3(32, slices), stream, parts, count, sums, columns);
}

}  // namespace stretto::gpu_code
