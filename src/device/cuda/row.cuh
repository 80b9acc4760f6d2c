#pragma once
#include "device/cuda/arithmetic.cuh"
#include "device/cuda/element.cuh"
#include "device/cuda/launch.cuh"

// Kernels over the rows of a matrix. A block is of x threads a row and y rows: one warp a row and several rows, or all
// threads at one row. Rows are taken in strides of the grid.
namespace stretto::gpu_code {

// Threads for rows of so many packs, of which each thread is to take up to `each`.
inline dim3 row_block(std::int64_t packs, int each, int most_threads) {
  const std::int64_t threads = std::clamp<std::int64_t>(divided_up(divided_up(packs, each), 32) * 32, 32, most_threads);
  return threads == 32 ? dim3(32, 8) : dim3(static_cast<unsigned>(threads), 1);
}

// Enough blocks to fill the GPU.
inline unsigned row_blocks(std::int64_t rows, dim3 block) {
  return blocks_for(divided_up(rows, block.y), static_cast<int>(std::max(1U, 4096 / (block.x * block.y))));
}

__device__ inline std::int64_t first_row() { return static_cast<std::int64_t>(blockIdx.x) * blockDim.y + threadIdx.y; }
__device__ inline std::int64_t row_stride() { return static_cast<std::int64_t>(gridDim.x) * blockDim.y; }

// The values of a row's threads combined, for all of them, in the same order at each call. All threads of the block take
// part where a row has more than one warp.
template <class A, class Combine>
__device__ inline A over_row(A value, Combine combine) {
  for (int distance = 16; distance > 0; distance /= 2) value = combine(value, __shfl_xor_sync(0xffffffffU, value, distance));
  if (blockDim.x == 32) return value;
  __shared__ A parts[32];
  __syncthreads();  // the parts of the call before have been read
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
  __syncthreads();
  value = parts[0];
  for (unsigned warp = 1; warp < blockDim.x / 32; ++warp) value = combine(value, parts[warp]);
  return value;
}

// One row, of which this thread keeps its first packs in registers: further visits read the rest again, from the cache.
template <class T, int N>
class HeldRow {
 public:
  static constexpr int held = 4;

  __device__ HeldRow(const void* x, std::int64_t row, std::int64_t columns)
      : x_(x), first_(row * columns), columns_(columns) {
#pragma unroll
    for (int k = 0; k < held; ++k) {
      if (column(k) < columns_) packs_[k] = load<T, N>(x_, first_ + column(k));
    }
  }

  // visit(c, pack) for the columns c ... c + N - 1.
  template <class Visit>
  __device__ void each(Visit visit) const {
#pragma unroll
    for (int k = 0; k < held; ++k) {
      if (column(k) < columns_) visit(column(k), packs_[k]);
    }
    for (std::int64_t c = column(held); c < columns_; c += static_cast<std::int64_t>(blockDim.x) * N)
      visit(c, load<T, N>(x_, first_ + c));
  }

  // The first column of this thread's k-th pack.
  __device__ static std::int64_t column(int k) { return (static_cast<std::int64_t>(k) * blockDim.x + threadIdx.x) * N; }
  __device__ const Pack<T, N>& pack(int k) const { return packs_[k]; }

 private:
  const void* x_;
  std::int64_t first_;
  std::int64_t columns_;
  Pack<T, N> packs_[held];
};

// Rows of which packs are at their alignment, in all of the arrays.
template <class... Arrays>
bool rows_of_packs(std::int64_t columns, int pack, const Arrays*... arrays) {
  return columns % pack == 0 && (... && (reinterpret_cast<std::uintptr_t>(arrays) % 16 == 0));
}

// visit(c, pack) for all columns of one row that may begin anywhere: packs from where they are aligned, and single elements
// before and behind them. It may write the elements that it was given.
template <class T, class Visit>
__device__ inline void for_each_of_row(const void* row, std::int64_t columns, Visit visit) {
  constexpr int pack = 16 / sizeof(Raw<T>);
  constexpr int together = 4;
  const auto before = static_cast<std::int64_t>((16 - reinterpret_cast<std::uintptr_t>(row) % 16) % 16 / sizeof(Raw<T>));
  const std::int64_t head = before < columns ? before : columns;
  const std::int64_t packs = (columns - head) / pack;
  const std::int64_t step = blockDim.x;
  std::int64_t p = threadIdx.x;
  for (; p + (together - 1) * step < packs; p += together * step) {
    Pack<T, pack> taken[together];
#pragma unroll
    for (int u = 0; u < together; ++u) taken[u] = load<T, pack>(row, head + (p + u * step) * pack);
#pragma unroll
    for (int u = 0; u < together; ++u) visit(head + (p + u * step) * pack, taken[u]);
  }
  for (; p < packs; p += step) visit(head + p * pack, load<T, pack>(row, head + p * pack));
  const std::int64_t behind = head + packs * pack + threadIdx.x;
  if (threadIdx.x < head) visit(static_cast<std::int64_t>(threadIdx.x), load<T, 1>(row, threadIdx.x));
  if (behind < columns) visit(behind, load<T, 1>(row, behind));
}

}  // namespace stretto::gpu_code
