#pragma once
#include "device/cuda/arithmetic.cuh"
#include "device/cuda/attention/async_copy.cuh"
#include "device/cuda/element.cuh"
#include "device/cuda/launch.cuh"

// Kernels over the rows of a matrix. A block has x threads for each of y rows: either one warp for each of several rows, or
// all threads for one row. Rows are taken in strides of the grid.
namespace stretto::gpu_code {

// The block for rows of `packs` packs, of which each thread takes up to `each` if most_threads allow.
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

// Combines the values of all threads of a row, in the same order at each call; every thread gets the result. If a row has
// more than one warp, all threads of the block must call it.
template <class A, int M, class Combine>
__device__ inline void over_row(A (&values)[M], Combine combine) {
  for (int distance = 16; distance > 0; distance /= 2) {
#pragma unroll
    for (int m = 0; m < M; ++m) values[m] = combine(values[m], __shfl_xor_sync(0xffffffffU, values[m], distance));
  }
  if (blockDim.x == 32) return;
  __shared__ A parts[32][M];
  __syncthreads();  // the parts of the previous call have been read
#pragma unroll
  for (int m = 0; m < M; ++m) {
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32][m] = values[m];
  }
  __syncthreads();
#pragma unroll
  for (int m = 0; m < M; ++m) values[m] = parts[0][m];
  for (unsigned warp = 1; warp < blockDim.x / 32; ++warp) {
#pragma unroll
    for (int m = 0; m < M; ++m) values[m] = combine(values[m], parts[warp][m]);
  }
}
template <class A, class Combine>
__device__ inline A over_row(A value, Combine combine) {
  A values[1] = {value};
  over_row(values, combine);
  return values[0];
}

// The beginning of a row of a matrix.
template <class T>
__device__ inline const std::uint8_t* row_of(const void* x, std::int64_t row, std::int64_t columns) {
  return static_cast<const std::uint8_t*>(x) + row * columns * static_cast<std::int64_t>(sizeof(Raw<T>));
}
template <class T>
__device__ inline std::uint8_t* row_of(void* x, std::int64_t row, std::int64_t columns) {
  return static_cast<std::uint8_t*>(x) + row * columns * static_cast<std::int64_t>(sizeof(Raw<T>));
}

// Prefetches a row into the L2 cache; the part beyond 128 bytes for each thread of the block is left out.
template <class T>
__device__ inline void prefetch_row(const void* x, std::int64_t row, std::int64_t columns) {
  const std::int64_t line = static_cast<std::int64_t>(threadIdx.x) * 128;
  if (line < columns * static_cast<std::int64_t>(sizeof(Raw<T>))) prefetch_line(row_of<T>(x, row, columns) + line);
}

// One row. This thread keeps its first packs in registers; each visit reads its other packs again, from the cache.
template <class T, int N, int held_packs = 4>
class HeldRow {
 public:
  static constexpr int held = held_packs;

  __device__ HeldRow(const void* x, std::int64_t row, std::int64_t columns)
      : row_(row_of<T>(x, row, columns)), columns_(columns) {
#pragma unroll
    for (int k = 0; k < held; ++k) {
      if (column(k) < columns_) packs_[k] = load<T, N>(row_, column(k));
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
      visit(c, load<T, N>(row_, c));
  }

  // The first column of this thread's k-th pack.
  __device__ static std::int64_t column(int k) { return (k * blockDim.x + threadIdx.x) * N; }
  __device__ const Pack<T, N>& pack(int k) const { return packs_[k]; }
  __device__ const void* begin() const { return row_; }

 private:
  const std::uint8_t* row_;
  std::int64_t columns_;
  Pack<T, N> packs_[held];
};

// Whether rows consist of aligned packs in all of the arrays.
template <class... Arrays>
bool rows_of_packs(std::int64_t columns, int pack, const Arrays*... arrays) {
  return columns % pack == 0 && (... && (reinterpret_cast<std::uintptr_t>(arrays) % 16 == 0));
}

// Calls visit(c, numbers) for all columns of one row that may begin at any element: packs where they are aligned, and single
// elements before and after them. visit may write the elements whose numbers it gets.
constexpr int most_visiting_threads = 256;
template <class T, class Visit>
__device__ inline void for_each_of_row(const void* row, std::int64_t columns, Visit visit) {
  constexpr int pack = 16 / sizeof(Raw<T>);
  constexpr int ahead = 4;  // packs of a thread in flight
  const auto before = static_cast<std::int64_t>((16 - reinterpret_cast<std::uintptr_t>(row) % 16) % 16 / sizeof(Raw<T>));
  const std::int64_t head = before < columns ? before : columns;
  const std::int64_t packs = (columns - head) / pack;
  __shared__ uint4 words[ahead][most_visiting_threads];
  uint4* const own = words[0] + threadIdx.y * blockDim.x + threadIdx.x;
  const auto slot_of = [&](unsigned turn) { return own + turn % ahead * most_visiting_threads; };
  const std::uint8_t* const first = static_cast<const std::uint8_t*>(row) + head * static_cast<std::int64_t>(sizeof(Raw<T>));
  const auto begin_next = [&](std::int64_t p, unsigned turn) {
    if (p < packs) begin_copy(slot_of(turn), first + p * 16);
    end_lot_of_copies();
  };
#pragma unroll
  for (unsigned turn = 0; turn < ahead; ++turn) begin_next(threadIdx.x + std::int64_t{turn} * blockDim.x, turn);
  unsigned turn = 0;
  for (std::int64_t p = threadIdx.x; p < packs; p += blockDim.x, ++turn) {
    wait_for_lots_but<ahead - 1>();
    Pack<T, pack> taken;
    memcpy(&taken, slot_of(turn), sizeof taken);
    begin_next(p + std::int64_t{ahead} * blockDim.x, turn);
    visit(head + p * pack, widened(taken));
  }
  const std::int64_t behind = head + packs * pack + threadIdx.x;
  if (threadIdx.x < head) visit(static_cast<std::int64_t>(threadIdx.x), widened(load<T, 1>(row, threadIdx.x)));
  if (behind < columns) visit(behind, widened(load<T, 1>(row, behind)));
}

}  // namespace stretto::gpu_code
