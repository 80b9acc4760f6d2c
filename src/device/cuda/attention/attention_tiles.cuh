// Shared by forward and backward: how a block of threads holds and multiplies tiles.
//
// A block has side x side threads and works on square tiles of scores, `tile` queries by `tile` keys. Thread (x, y) owns
// the rows y, y + side, ... and the columns x, x + side, ... of every matrix: of the scores and of the sums over them. A row
// of scores thus belongs to 16 threads of one warp. Therefore rows are reduced by shuffles, and weights that are multiplied
// from the left need no barrier of the block.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cfloat>
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

// The heads of a tensor's rows: the first element of the first, and the elements from one row to the next.
template <class F>
struct Source {
  const F* data;
  Index pitch, parts, part_step;  // TokenHeads
};

// Heads that are read and written: elements of F, or of the type in which F is computed if `wide`.
template <class F>
struct Results {
  void* data;
  Index pitch, parts, part_step;  // TokenHeads
  bool wide, add;                 // add: to the elements in memory

  __device__ Compute<F> load(Index at) const {
    return wide ? static_cast<const Compute<F>*>(data)[at] : widened(static_cast<const F*>(data)[at]);
  }
  __device__ void store(Compute<F> x, Index at) const {
    if (add) x += load(at);
    if (wide) {
      static_cast<Compute<F>*>(data)[at] = x;
    } else {
      attention::store(x, static_cast<F*>(data) + at);
    }
  }
};

// One head of one sequence of `tokens` rows.
struct Head {
  Index token, head, head_size;

  __device__ Head(Index sequence, Index tokens, Index head, Index head_size)
      : token(sequence * tokens), head(head), head_size(head_size) {}
  template <class Place>
  __device__ Index in(const Place& place) const {
    const Index column =
        place.parts == 1 ? head * head_size : head % place.parts * place.part_step + head / place.parts * head_size;
    return token * place.pitch + column;
  }
};

// Loads `tile` rows from row `first` on, times a factor. Elements beyond the head or the sequence become zero.
template <int tile, int width, class F, class T>
__device__ void load_tile(const Source<F>& from, const Head& head, Index first, Index tokens, int head_size, T factor,
                          T* to) {
  const int thread = threadIdx.y * side + threadIdx.x;
  const F* const rows = from.data + head.in(from);
  for (int i = thread; i < tile * width; i += block_threads) {
    const int row = i / width;
    const int column = i % width;
    const bool is_there = first + row < tokens && column < head_size;
    to[row * pitch<width> + column] = is_there ? widened(rows[(first + row) * from.pitch + column]) * factor : T(0);
  }
}

// Where the documents of a sequence's queries begin; null if the sequence is one document.
__device__ inline const std::int32_t* starts_of(const kernels::AttentionBlock& block, Index sequence) {
  return block.starts == nullptr ? nullptr : block.starts + sequence * block.queries;
}

// A tile of queries and keys as the mask sees it. Ranges end with the sequences.
struct TileSight {
  bool any, all;

  __device__ TileSight(const kernels::AttentionBlock& block, const std::int32_t* starts, Index first_query, Index first_key,
                       int tile) {
    const Index last_query = first_query + tile < block.queries ? first_query + tile : block.queries;
    const Index last_key = first_key + tile < block.keys ? first_key + tile : block.keys;
    const kernels::TokenRange queries{block.query_positions, first_query, last_query};
    const kernels::TokenRange keys{block.key_positions, first_key, last_key};
    any = block.mask.sees_any(queries, keys);
    all = any && last_query - first_query == tile && last_key - first_key == tile && block.mask.sees_all(queries, keys);
    if (starts == nullptr || !any) return;
    // Positions and starts do not decrease from row to row.
    any = starts[first_query] <= block.key_positions.at(last_key - 1);
    all = all && starts[last_query - 1] <= block.key_positions.at(first_key);
  }
};

__device__ inline bool sees(const kernels::AttentionBlock& block, const std::int32_t* starts, Index query, Index key) {
  if (query >= block.queries || key >= block.keys) return false;
  const Index position = block.key_positions.at(key);
  return block.mask.sees(block.query_positions.at(query), position) && (starts == nullptr || starts[query] <= position);
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
__device__ void store_tile(const T (&from)[tile / side][width / side], const T (&factors)[tile / side], const Head& head,
                           Index first, Index tokens, int head_size, const Results<F>& to) {
  const Index begin = head.in(to);
#pragma unroll
  for (int i = 0; i < tile / side; ++i) {
    const Index row = first + threadIdx.y + side * i;
    if (row >= tokens) continue;
#pragma unroll
    for (int j = 0; j < width / side; ++j) {
      const int column = threadIdx.x + side * j;
      if (column < head_size) to.store(from[i][j] * factors[i], begin + row * to.pitch + column);
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

template <class F>
Source<F> source(const kernels::TokenHeads& heads) {
  return {static_cast<const F*>(heads.tensor.raw()) + heads.first_column, heads.tensor.columns(), heads.parts,
          heads.part_step};
}

template <class F>
Results<F> results(const kernels::TokenHeads& heads, DType f, bool add = false) {
  const bool wide = heads.tensor.dtype() != f;
  const std::size_t size = wide ? sizeof(Compute<F>) : sizeof(F);
  return {static_cast<unsigned char*>(heads.tensor.raw()) + heads.first_column * size,
          heads.tensor.columns(),
          heads.parts,
          heads.part_step,
          wide,
          add};
}

inline kernels::AttentionBlock with_kv_heads(kernels::AttentionBlock block) {
  if (block.kv_heads == 0) block.kv_heads = block.heads;
  return block;
}

// Launches one block for each tile of `tokens` of each head; blocks start in the order of their numbers.
template <class Kernel, class... Arguments>
cudaError_t launch_tiles(Kernel kernel, const kernels::AttentionBlock& block, Index tokens, Index heads, int tile,
                         std::size_t shared_bytes, cudaStream_t stream, const Arguments&... arguments) {
  const Index blocks = (tokens + tile - 1) / tile * block.batch * heads;
  if (blocks == 0) return cudaSuccess;
  const cudaError_t result =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes));
  if (result != cudaSuccess) return result;
  return gpu_code::try_launch(kernel, static_cast<unsigned>(blocks), dim3(side, side), shared_bytes, stream, block,
                              arguments...);
}

}  // namespace stretto::attention
