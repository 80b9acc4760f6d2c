// The gradient of attention after FlashAttention-2 (Dao 2023): tiles of scores are computed again from the log-sum-exp. The
// block that has the keys sums the gradients of keys and values, the block that has the queries sums the gradient of
// queries. Scores are thus computed twice, but no two blocks add to the same element, and the order of every sum is fixed.
#include "device/cuda/attention/attention.hpp"
#include "device/cuda/attention/attention_tiles.cuh"

namespace stretto::attention {
namespace {

template <int tile, int width, class T>
constexpr std::size_t shared_bytes() {
  return (4 * tile * pitch<width> + tile * pitch<tile>)*sizeof(T);
}

template <class F>
struct Arguments {
  Source<F> q, k, v, dout;
  Results<F> out, dq, dk, dv;
  const Compute<F>* log_sum_exp;
  Compute<F>* delta;  // [batch, heads, queries]: dout times out, which is also the sum over all keys of p dp
  Compute<F> scale;
};

// A warp for each token and head.
template <class F, class T = Compute<F>>
__global__ void __launch_bounds__(block_threads) sum_deltas(kernels::AttentionBlock block, Arguments<F> given) {
  constexpr int warp = 32;
  const Index row = (static_cast<Index>(blockIdx.x) * block_threads + threadIdx.x) / warp;
  const Index rows = block.batch * block.queries * block.heads;
  if (row >= rows) return;  // all of the warp returns
  const Index token = row / block.heads;
  const Index head = row % block.heads;
  const Head whole(token, 1, head, block.head_size);
  const Index out_at = whole.in(given.out);
  const F* const dout = given.dout.data + whole.in(given.dout);
  T sum = 0;
  for (int c = threadIdx.x % warp; c < block.head_size; c += warp) sum += given.out.load(out_at + c) * widened(dout[c]);
  for (int distance = warp / 2; distance > 0; distance /= 2) sum += __shfl_xor_sync(0xffffffffU, sum, distance);
  const Index sequence = token / block.queries;
  if (threadIdx.x % warp == 0) {
    given.delta[(sequence * block.heads + head) * block.queries + token % block.queries] = sum;
  }
}

// In these tiles of scores, rows are keys and columns are queries.
template <class F, int width, class T = Compute<F>>
__global__ void __launch_bounds__(block_threads) backward_keys(kernels::AttentionBlock block, Arguments<F> given) {
  constexpr int tile = backward_tile<T, width>;
  constexpr int own = tile / side;
  extern __shared__ __align__(16) unsigned char memory[];
  T* const k = reinterpret_cast<T*>(memory);
  T* const v = k + tile * pitch<width>;
  T* const q = v + tile * pitch<width>;
  T* const dout = q + tile * pitch<width>;
  T* const weights = dout + tile * pitch<width>;

  const Index kv_heads = block.batch * block.kv_heads;
  const Index number = blockIdx.x % kv_heads;
  const Index sequence = number / block.kv_heads;
  const Head key_head(sequence, block.keys, number % block.kv_heads, block.head_size);
  const Index first_key = blockIdx.x / kv_heads * tile;  // keys that the most queries see begin first
  const int head_size = static_cast<int>(block.head_size);
  const std::int32_t* const starts = starts_of(block, sequence);
  const Index group = block.heads / block.kv_heads;  // heads that share these keys

  T dk[own][width / side] = {};
  T dv[own][width / side] = {};
  load_tile<tile, width>(given.k, key_head, first_key, block.keys, head_size, T(1), k);
  load_tile<tile, width>(given.v, key_head, first_key, block.keys, head_size, T(1), v);
  for (Index member = 0; member < group; ++member) {
    const Index head = number % block.kv_heads * group + member;
    const Head query_head(sequence, block.queries, head, block.head_size);
    const Index statistics = (sequence * block.heads + head) * block.queries;
    for (Index first_query = 0; first_query < block.queries; first_query += tile) {
      const TileSight sight(block, starts, first_query, first_key, tile);
      if (!sight.any) continue;
      __syncthreads();  // the previous queries are no longer read
      load_tile<tile, width>(given.q, query_head, first_query, block.queries, head_size, given.scale, q);
      load_tile<tile, width>(given.dout, query_head, first_query, block.queries, head_size, T(1), dout);
      __syncthreads();
      T p[own][own];
      T ds[own][own];
      multiply_rows<width>(k, q, head_size, p);
      multiply_rows<width>(v, dout, head_size, ds);
#pragma unroll
      for (int j = 0; j < own; ++j) {
        const Index query = first_query + threadIdx.x + side * j;
        const bool is_there = query < block.queries;
        const T shift = is_there ? given.log_sum_exp[statistics + query] : T(0);
        const T delta = is_there ? given.delta[statistics + query] : T(0);
#pragma unroll
        for (int i = 0; i < own; ++i) {
          const bool seen = sight.all || sees(block, starts, query, first_key + threadIdx.y + side * i);
          p[i][j] = seen ? exp(p[i][j] - shift) : T(0);
          ds[i][j] = p[i][j] * (ds[i][j] - delta);
        }
      }
      // A row of weights is written and read by the same warp.
      keep_weights<tile>(p, weights);
      __syncwarp();
      add_weighted_rows<tile, width>(weights, dout, dv);
      __syncwarp();
      keep_weights<tile>(ds, weights);
      __syncwarp();
      add_weighted_rows<tile, width>(weights, q, dk);
    }
  }
  T one[own];
#pragma unroll
  for (int i = 0; i < own; ++i) one[i] = 1;
  store_tile<tile, width>(dk, one, key_head, first_key, block.keys, head_size, given.dk);
  store_tile<tile, width>(dv, one, key_head, first_key, block.keys, head_size, given.dv);
}

template <class F, int width, class T = Compute<F>>
__global__ void __launch_bounds__(block_threads) backward_queries(kernels::AttentionBlock block, Arguments<F> given) {
  constexpr int tile = backward_tile<T, width>;
  constexpr int own = tile / side;
  extern __shared__ __align__(16) unsigned char memory[];
  T* const q = reinterpret_cast<T*>(memory);
  T* const dout = q + tile * pitch<width>;
  T* const k = dout + tile * pitch<width>;
  T* const v = k + tile * pitch<width>;
  T* const weights = v + tile * pitch<width>;

  const Index heads = block.batch * block.heads;
  const Index tiles = (block.queries + tile - 1) / tile;
  const Index number = blockIdx.x % heads;
  const Head query_head(number / block.heads, block.queries, number % block.heads, block.head_size);
  const Head key_head(number / block.heads, block.keys, number % block.heads / (block.heads / block.kv_heads),
                      block.head_size);
  const Index first_query = (tiles - 1 - blockIdx.x / heads) * tile;  // queries that see the most keys begin first
  const int head_size = static_cast<int>(block.head_size);
  const std::int32_t* const starts = starts_of(block, number / block.heads);

  T shift[own];
  T delta[own];
  T scale[own];
#pragma unroll
  for (int i = 0; i < own; ++i) {
    const Index query = first_query + threadIdx.y + side * i;
    const Index at = number * block.queries + query;
    shift[i] = query < block.queries ? given.log_sum_exp[at] : T(0);
    delta[i] = query < block.queries ? given.delta[at] : T(0);
    scale[i] = given.scale;
  }
  T dq[own][width / side] = {};
  load_tile<tile, width>(given.q, query_head, first_query, block.queries, head_size, given.scale, q);
  load_tile<tile, width>(given.dout, query_head, first_query, block.queries, head_size, T(1), dout);
  for (Index first_key = 0; first_key < block.keys; first_key += tile) {
    const TileSight sight(block, starts, first_query, first_key, tile);
    if (!sight.any) continue;
    __syncthreads();  // the previous keys are no longer read
    load_tile<tile, width>(given.k, key_head, first_key, block.keys, head_size, T(1), k);
    load_tile<tile, width>(given.v, key_head, first_key, block.keys, head_size, T(1), v);
    __syncthreads();
    T p[own][own];
    T ds[own][own];
    multiply_rows<width>(q, k, head_size, p);
    multiply_rows<width>(dout, v, head_size, ds);
#pragma unroll
    for (int i = 0; i < own; ++i) {
      const Index query = first_query + threadIdx.y + side * i;
#pragma unroll
      for (int j = 0; j < own; ++j) {
        const bool seen = sight.all || sees(block, starts, query, first_key + threadIdx.x + side * j);
        ds[i][j] = seen ? exp(p[i][j] - shift[i]) * (ds[i][j] - delta[i]) : T(0);
      }
    }
    keep_weights<tile>(ds, weights);
    __syncwarp();  // a row of weights is written and read by the same warp
    add_weighted_rows<tile, width>(weights, k, dq);
  }
  store_tile<tile, width>(dq, scale, query_head, first_query, block.queries, head_size, given.dq);
}

}  // namespace

cudaError_t own_backward(const kernels::AttentionBlock& given_block, const BlockBackward& given, void* deltas,
                         cudaStream_t stream) {
  const kernels::AttentionBlock block = with_kv_heads(given_block);
  const DType f = given.q.tensor.dtype();
  return with_type_and_width(f, block.head_size, [&]<class F, int width>(F, std::integral_constant<int, width>) {
    using T = Compute<F>;
    constexpr int tile = backward_tile<T, width>;
    constexpr std::size_t bytes = shared_bytes<tile, width, T>();
    const Arguments<F> arguments{source<F>(given.q),
                                 source<F>(given.k),
                                 source<F>(given.v),
                                 source<F>(given.dout),
                                 results<F>(given.out, f),
                                 results<F>(given.dq, f, given.sums.queries),
                                 results<F>(given.dk, f, given.sums.keys),
                                 results<F>(given.dv, f, given.sums.keys),
                                 static_cast<const T*>(given.log_sum_exp.raw()),
                                 static_cast<T*>(deltas),
                                 T(1) / std::sqrt(static_cast<T>(block.head_size))};
    constexpr Index rows_a_block = block_threads / 32;
    const Index blocks = (block.batch * block.queries * block.heads + rows_a_block - 1) / rows_a_block;
    cudaError_t result = cudaSuccess;
    if (blocks > 0) {
      result =
          gpu_code::try_launch(sum_deltas<F>, static_cast<unsigned>(blocks), block_threads, 0, stream, block, arguments);
    }
    if (result == cudaSuccess) {
      result = launch_tiles(backward_keys<F, width>, block, block.keys, block.kv_heads, tile, bytes, stream, arguments);
    }
    if (result == cudaSuccess) {
      result = launch_tiles(backward_queries<F, width>, block, block.queries, block.heads, tile, bytes, stream, arguments);
    }
    return result;
  });
}

}  // namespace stretto::attention
