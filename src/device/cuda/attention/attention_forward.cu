// Attention after FlashAttention-2 (Dao 2023): a block has the queries of one tile and goes through the keys tile by tile,
// with a running maximum and sum for each query. Merging goes on from the results of earlier keys: their log-sum-exp is a
// maximum whose sum is 1.
#include "device/cuda/attention/attention.hpp"
#include "device/cuda/attention/attention_tiles.cuh"

namespace stretto::attention {
namespace {

template <int tile, int width, class T>
constexpr std::size_t shared_bytes() {
  return (2 * tile * pitch<width> + tile * pitch<tile>)*sizeof(T);
}

template <class F>
struct Arguments {
  Source<F> q, k, v;
  Results<F> out;
  Compute<F>* log_sum_exp;
  Compute<F> scale;
  bool merge;
};

template <class F, int width, class T = Compute<F>>
__global__ void __launch_bounds__(block_threads) forward(kernels::AttentionBlock block, Arguments<F> given) {
  constexpr int tile = forward_tile<T, width>;
  constexpr int own = tile / side;
  constexpr T none = -INFINITY;
  constexpr T lowest = std::is_same_v<T, double> ? T(-DBL_MAX) : T(-FLT_MAX);  // differences of two of these are numbers
  extern __shared__ __align__(16) unsigned char memory[];
  T* const q = reinterpret_cast<T*>(memory);
  T* const kv = q + tile * pitch<width>;  // keys, then values
  T* const weights = kv + tile * pitch<width>;

  const Index heads = block.batch * block.heads;
  const Index tiles = (block.queries + tile - 1) / tile;
  const Index number = blockIdx.x % heads;
  const Head query_head(number / block.heads, block.queries, number % block.heads, block.head_size);
  const Head key_head(number / block.heads, block.keys, number % block.heads / (block.heads / block.kv_heads),
                      block.head_size);
  const Index first_query = (tiles - 1 - blockIdx.x / heads) * tile;  // queries that see the most keys begin first
  const int head_size = static_cast<int>(block.head_size);
  const std::int32_t* const starts = starts_of(block, number / block.heads);

  const Index out_at = query_head.in(given.out);
  T top[own];
  T sum[own];  // this thread's part
  T o[own][width / side];
#pragma unroll
  for (int i = 0; i < own; ++i) {
    const Index query = first_query + threadIdx.y + side * i;
    const bool goes_on = given.merge && query < block.queries;
    const T before = goes_on ? given.log_sum_exp[number * block.queries + query] : none;
    top[i] = before == none ? lowest : before;
    sum[i] = before == none || threadIdx.x > 0 ? T(0) : T(1);
#pragma unroll
    for (int j = 0; j < width / side; ++j) {
      const int column = threadIdx.x + side * j;
      const bool is_there = before != none && column < head_size;
      o[i][j] = is_there ? given.out.load(out_at + query * given.out.pitch + column) : T(0);
    }
  }
  load_tile<tile, width>(given.q, query_head, first_query, block.queries, head_size, given.scale, q);
  bool seen = false;
  for (Index first_key = 0; first_key < block.keys; first_key += tile) {
    const TileSight sight(block, starts, first_query, first_key, tile);
    if (!sight.any) continue;
    seen = true;
    __syncthreads();  // the previous values are no longer read
    load_tile<tile, width>(given.k, key_head, first_key, block.keys, head_size, T(1), kv);
    __syncthreads();
    T scores[own][own];
    multiply_rows<width>(q, kv, head_size, scores);
#pragma unroll
    for (int i = 0; i < own; ++i) {
      const Index query = first_query + threadIdx.y + side * i;
      T best = top[i];
#pragma unroll
      for (int j = 0; j < own; ++j) {
        if (!sight.all && !sees(block, starts, query, first_key + threadIdx.x + side * j)) scores[i][j] = none;
        best = max(best, scores[i][j]);
      }
      best = row_max(best);
      const T correction = exp(top[i] - best);
      top[i] = best;
      sum[i] *= correction;
#pragma unroll
      for (int j = 0; j < own; ++j) {
        scores[i][j] = exp(scores[i][j] - best);
        sum[i] += scores[i][j];
      }
#pragma unroll
      for (int j = 0; j < width / side; ++j) o[i][j] *= correction;
    }
    keep_weights<tile>(scores, weights);
    __syncthreads();  // the keys are no longer read
    load_tile<tile, width>(given.v, key_head, first_key, block.keys, head_size, T(1), kv);
    __syncthreads();
    add_weighted_rows<tile, width>(weights, kv, o);
  }
  if (given.merge && !seen) return;

  T inverse[own];
#pragma unroll
  for (int i = 0; i < own; ++i) {
    const T total = row_sum(sum[i]);
    inverse[i] = total == T(0) ? T(0) : T(1) / total;
    const Index query = first_query + threadIdx.y + side * i;
    if (threadIdx.x == 0 && query < block.queries)
      given.log_sum_exp[number * block.queries + query] = total == T(0) ? none : top[i] + log(total);
  }
  store_tile<tile, width>(o, inverse, query_head, first_query, block.queries, head_size, given.out);
}

}  // namespace

cudaError_t own_forward(const kernels::AttentionBlock& block, const BlockForward& given, cudaStream_t stream) {
  const DType f = given.q.tensor.dtype();
  return with_type_and_width(f, block.head_size, [&]<class F, int width>(F, std::integral_constant<int, width>) {
    using T = Compute<F>;
    constexpr int tile = forward_tile<T, width>;
    const Arguments<F> arguments{source<F>(given.q),
                                 source<F>(given.k),
                                 source<F>(given.v),
                                 results<F>(given.out, f),
                                 static_cast<T*>(given.log_sum_exp.raw()),
                                 T(1) / std::sqrt(static_cast<T>(block.head_size)),
                                 given.merge};
    return launch_tiles(forward<F, width>, with_kv_heads(block), block.queries, block.heads, tile,
                        shared_bytes<tile, width, T>(), stream, arguments);
  });
}

}  // namespace stretto::attention
