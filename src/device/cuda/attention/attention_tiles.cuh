// Shared by forward and backward: how a block of threads holds and multiplies tiles.
//
// A block has side x side threads and works on square tiles of scores, `tile` queries by `tile` keys. Thread (x, y) owns
// the rows y, y + side, ... and the columns x, x + side, ... of every matrix: of the scores and of the sums over them. A row
// of scores thus belongs to 16 threads of one warp. Therefore rows are reduced by shuffles, and weights that are multiplied
// from the left need no barrier of the block.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "device/cuda/launch.cuh"
#include "stretto/kernels.hpp"

namespace stretto::attention {

using Index = std::int64_t;

constexpr int side = 16;
constexpr int block_threads = side * side;

template <class F>
using Compute = std::conditional_t<std::is_same_v<F, double>, double, float>;

__device__ inline double widened(double x) { return x; }
__device__ inline float widened(float x) { return x; }
__device__ inline float widened(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ inline float widened(__half x) { return __half2float(x); }
__device__ inline void store(double x, double* to) { *to = x; }
__device__ inline void store(float x, float* to) { *to = x; }
__device__ inline void store(float x, __nv_bfloat16* to) { *to = __float2bfloat16_rn(x); }
__device__ inline void store(float x, __half* to) { *to = __float2half_rn(x); }

// Tokens in a tile, for heads of up to `width` elements, so that its matrices fit into shared memory: every GPU since A100
// has 99 KiB for a block (f64 with 256 elements takes 131 KiB in backward, which A100, H100 and B200 have).
template <class T, int width, int row_bytes = width * sizeof(T)>
constexpr int forward_tile = 32768 / (row_bytes < 512 ? 512 : row_bytes);
template <class T, int width, int row_bytes = width * sizeof(T)>
constexpr int backward_tile = row_bytes <= 256   ? 64
                              : row_bytes <= 512 ? 32
                                                 : 16;

// A row of a tile has one element of padding, so that threads that read down a column use different banks.
template <int width>
constexpr int pitch = width + 1;

// One head of one sequence, and its position in the tensors.
template <class F>
struct Head {
  Index head;              // number among the heads of all sequences
  Index qkv_at, token_at;  // its first element in qkv, and in tensors with one vector for each token
  Index qkv_row, token_row;

  __device__ Head(const kernels::AttentionShape& shape, Index number) : head(number) {
    const Index hidden = shape.heads * shape.head_size;
    const Index token = number / shape.heads * shape.sequence;
    const Index within = number % shape.heads * shape.head_size;
    qkv_at = token * 3 * hidden + within;
    token_at = token * hidden + within;
    qkv_row = 3 * hidden;
    token_row = hidden;
  }
};

// Loads `tile` rows from row `first` on, times a factor. Elements beyond the head or the sequence become zero.
template <int tile, int width, class F, class T>
__device__ void load_tile(const F* from, Index row_elements, Index first, Index sequence, int head_size, T factor, T* to) {
  const int thread = threadIdx.y * side + threadIdx.x;
  for (int i = thread; i < tile * width; i += block_threads) {
    const int row = i / width;
    const int column = i % width;
    const bool is_there = first + row < sequence && column < head_size;
    to[row * pitch<width> + column] = is_there ? widened(from[(first + row) * row_elements + column]) * factor : T(0);
  }
}

// products[i][j] = the owned row i of a times the owned row j of b.
template <int width, int own, class T>
__device__ void multiply_rows(const T* a, const T* b, int head_size, T (&products)[own][own]) {
#pragma unroll
  for (int i = 0; i < own; ++i) {
#pragma unroll
    for (int j = 0; j < own; ++j) products[i][j] = 0;
  }
#pragma unroll 4
  for (int c = 0; c < head_size; ++c) {
    T left[own];
    T right[own];
#pragma unroll
    for (int i = 0; i < own; ++i) left[i] = a[(threadIdx.y + side * i) * pitch<width> + c];
#pragma unroll
    for (int j = 0; j < own; ++j) right[j] = b[(threadIdx.x + side * j) * pitch<width> + c];
#pragma unroll
    for (int i = 0; i < own; ++i) {
#pragma unroll
      for (int j = 0; j < own; ++j) products[i][j] += left[i] * right[j];
    }
  }
}

// sums[i] += the rows of b, weighted by the owned row i of weights.
template <int tile, int width, class T>
__device__ void add_weighted_rows(const T* weights, const T* b, T (&sums)[tile / side][width / side]) {
#pragma unroll 4
  for (int k = 0; k < tile; ++k) {
    T left[tile / side];
    T right[width / side];
#pragma unroll
    for (int i = 0; i < tile / side; ++i) left[i] = weights[(threadIdx.y + side * i) * pitch<tile> + k];
#pragma unroll
    for (int j = 0; j < width / side; ++j) right[j] = b[k * pitch<width> + threadIdx.x + side * j];
#pragma unroll
    for (int i = 0; i < tile / side; ++i) {
#pragma unroll
      for (int j = 0; j < width / side; ++j) sums[i][j] += left[i] * right[j];
    }
  }
}

// Stores the owned elements in shared memory, where the threads of a row read them as rows of weights.
template <int tile, class T>
__device__ void keep_weights(const T (&from)[tile / side][tile / side], T* weights) {
#pragma unroll
  for (int i = 0; i < tile / side; ++i) {
#pragma unroll
    for (int j = 0; j < tile / side; ++j) {
      weights[(threadIdx.y + side * i) * pitch<tile> + threadIdx.x + side * j] = from[i][j];
    }
  }
}

// Stores the owned elements, times a factor for each row.
template <int tile, int width, class F, class T>
__device__ void store_tile(const T (&from)[tile / side][width / side], const T (&factors)[tile / side], Index first,
                           Index sequence, int head_size, F* to, Index row_elements) {
#pragma unroll
  for (int i = 0; i < tile / side; ++i) {
    const Index row = first + threadIdx.y + side * i;
    if (row >= sequence) continue;
#pragma unroll
    for (int j = 0; j < width / side; ++j) {
      const int column = threadIdx.x + side * j;
      if (column < head_size) store(from[i][j] * factors[i], to + row * row_elements + column);
    }
  }
}

// The maximum, and the sum, over the 16 threads that own a row; each of them gets the result. All threads of a warp must
// call them together.
template <class T>
__device__ T row_max(T x) {
  for (int distance = side / 2; distance > 0; distance /= 2) x = max(x, __shfl_xor_sync(0xffffffffU, x, distance));
  return x;
}
template <class T>
__device__ T row_sum(T x) {
  for (int distance = side / 2; distance > 0; distance /= 2) x += __shfl_xor_sync(0xffffffffU, x, distance);
  return x;
}

// ---- on the host

// Calls run with an element of the C++ type and the least width compiled that holds a head.
template <class Run>
cudaError_t with_type_and_width(DType dtype, Index head_size, Run run) {
  const auto with_width = [&]<class F>(F type) {
    if (head_size <= 32) return run(type, std::integral_constant<int, 32>{});
    if (head_size <= 64) return run(type, std::integral_constant<int, 64>{});
    if (head_size <= 128) return run(type, std::integral_constant<int, 128>{});
    return run(type, std::integral_constant<int, 256>{});
  };
  switch (dtype) {
    case DType::f64: return with_width(double{});
    case DType::f32: return with_width(float{});
    case DType::bf16: return with_width(__nv_bfloat16{});
    default: return with_width(__half{});
  }
}

// Launches one block for each tile of each head; blocks start in the order of their numbers.
template <class Kernel, class... Arguments>
cudaError_t launch_tiles(Kernel kernel, const kernels::AttentionShape& shape, int tile, std::size_t shared_bytes,
                         cudaStream_t stream, const Arguments&... arguments) {
  const Index blocks = (shape.sequence + tile - 1) / tile * shape.batch * shape.heads;
  const cudaError_t result =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes));
  if (result != cudaSuccess) return result;
  return gpu_code::try_launch(kernel, static_cast<unsigned>(blocks), dim3(side, side), shared_bytes, stream, shape,
                              arguments...);
}

}  // namespace stretto::attention
