// Attention after FlashAttention-2 (Dao 2023): a block has the queries of one tile and goes through the keys tile by tile,
// with a running maximum and sum for each query.
#include "device/cuda/attention/attention.hpp"
#include "device/cuda/attention/attention_tiles.cuh"

namespace stretto::attention {
namespace {

template <int tile, int width, class T>
constexpr std::size_t shared_bytes() {
  return (2 * tile * pitch<width> + tile * pitch<tile>)*sizeof(T);
}

template <class F, int width, class T = Compute<F>>
__global__ void __launch_bounds__(block_threads)
    forward(kernels::AttentionShape shape, const F* qkv, F* out, T* log_sum_exp, T scale) {
  constexpr int tile = forward_tile<T, width>;
  constexpr int own = tile / side;
  constexpr T lowest = -INFINITY;
  extern __shared__ __align__(16) unsigned char memory[];
  T* const q = reinterpret_cast<T*>(memory);
  T* const kv = q + tile * pitch<width>;  // keys, then values
  T* const weights = kv + tile * pitch<width>;

  const Index heads = shape.batch * shape.heads;
  const Index tiles = (shape.sequence + tile - 1) / tile;
  const Head<F> head(shape, blockIdx.x % heads);
  const Index query_tile = tiles - 1 - blockIdx.x / heads;  // queries that see the most keys begin first
  const Index first_query = query_tile * tile;
  const int head_size = static_cast<int>(shape.head_size);
  const F* const q_from = qkv + head.qkv_at;
  const F* const k_from = q_from + head.token_row;
  const F* const v_from = k_from + head.token_row;

  T top[own];
  T sum[own];  // this thread's part
  T o[own][width / side];
#pragma unroll
  for (int i = 0; i < own; ++i) {
    top[i] = lowest;
    sum[i] = 0;
#pragma unroll
    for (int j = 0; j < width / side; ++j) o[i][j] = 0;
  }
  load_tile<tile, width>(q_from, head.qkv_row, first_query, shape.sequence, head_size, scale, q);
  for (Index first_key = 0; first_key <= first_query; first_key += tile) {
    __syncthreads();  // the previous values are no longer read
    load_tile<tile, width>(k_from, head.qkv_row, first_key, shape.sequence, head_size, T(1), kv);
    __syncthreads();
    T scores[own][own];
    multiply_rows<width>(q, kv, head_size, scores);
#pragma unroll
    for (int i = 0; i < own; ++i) {
      const Index query = first_query + threadIdx.y + side * i;
      T best = top[i];
#pragma unroll
      for (int j = 0; j < own; ++j) {
        // Keys beyond the end of the sequence are later than every query, and so are masked here, too.
        if (first_key + threadIdx.x + side * j > query) scores[i][j] = lowest;
        best = max(best, scores[i][j]);
      }
      best = row_max(best);  // finite: a query sees at least the first key of each of its tiles
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
    load_tile<tile, width>(v_from, head.qkv_row, first_key, shape.sequence, head_size, T(1), kv);
    __syncthreads();
    add_weighted_rows<tile, width>(weights, kv, o);
  }

  T inverse[own];
#pragma unroll
  for (int i = 0; i < own; ++i) {
    const T total = row_sum(sum[i]);
    inverse[i] = T(1) / total;
    const Index query = first_query + threadIdx.y + side * i;
    if (threadIdx.x == 0 && query < shape.sequence) log_sum_exp[head.head * shape.sequence + query] = top[i] + log(total);
  }
  store_tile<tile, width>(o, inverse, first_query, shape.sequence, head_size, out + head.token_at, head.token_row);
}

}  // namespace

cudaError_t own_forward(const kernels::AttentionShape& shape, const Tensor& qkv, const Tensor& out,
                        const Tensor& log_sum_exp, cudaStream_t stream) {
  return with_type_and_width(qkv.dtype(), shape.head_size, [&]<class F, int width>(F, std::integral_constant<int, width>) {
    using T = Compute<F>;
    constexpr int tile = forward_tile<T, width>;
    const T scale = T(1) / std::sqrt(static_cast<T>(shape.head_size));
    return launch_tiles(forward<F, width>, shape, tile, shared_bytes<tile, width, T>(), stream,
                        static_cast<const F*>(qkv.raw()), static_cast<F*>(out.raw()), static_cast<T*>(log_sum_exp.raw()),
                        scale);
  });
}

}  // namespace stretto::attention
