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
  const F *qkv, *out, *dout;
  const Compute<F>* log_sum_exp;
  Compute<F>* delta;  // [batch, heads, sequence]: dout times out, which is also the sum over the keys of p dp
  F* dqkv;
  Compute<F> scale;
};

// A warp for each token and head.
template <class F, class T = Compute<F>>
__global__ void __launch_bounds__(block_threads) sum_deltas(kernels::AttentionShape shape, Arguments<F> given) {
  constexpr int warp = 32;
  const Index row = (static_cast<Index>(blockIdx.x) * block_threads + threadIdx.x) / warp;
  const Index rows = shape.batch * shape.sequence * shape.heads;
  if (row >= rows) return;  // all of the warp returns
  const Index token = row / shape.heads;
  const Index head = row % shape.heads;
  T sum = 0;
  for (int c = threadIdx.x % warp; c < shape.head_size; c += warp) {
    sum += widened(given.out[row * shape.head_size + c]) * widened(given.dout[row * shape.head_size + c]);
  }
  for (int distance = warp / 2; distance > 0; distance /= 2) sum += __shfl_xor_sync(0xffffffffU, sum, distance);
  const Index sequence = token / shape.sequence;
  if (threadIdx.x % warp == 0) {
    given.delta[(sequence * shape.heads + head) * shape.sequence + token % shape.sequence] = sum;
  }
}

// In these tiles of scores, rows are keys and columns are queries.
template <class F, int width, class T = Compute<F>>
__global__ void __launch_bounds__(block_threads) backward_keys(kernels::AttentionShape shape, Arguments<F> given) {
  constexpr int tile = backward_tile<T, width>;
  constexpr int own = tile / side;
  extern __shared__ __align__(16) unsigned char memory[];
  T* const k = reinterpret_cast<T*>(memory);
  T* const v = k + tile * pitch<width>;
  T* const q = v + tile * pitch<width>;
  T* const dout = q + tile * pitch<width>;
  T* const weights = dout + tile * pitch<width>;

  const Index heads = shape.batch * shape.heads;
  const Head<F> head(shape, blockIdx.x % heads);
  const Index first_key = blockIdx.x / heads * tile;  // keys that the most queries see begin first
  const int head_size = static_cast<int>(shape.head_size);
  const F* const q_from = given.qkv + head.qkv_at;

  T dk[own][width / side] = {};
  T dv[own][width / side] = {};
  load_tile<tile, width>(q_from + head.token_row, head.qkv_row, first_key, shape.sequence, head_size, T(1), k);
  load_tile<tile, width>(q_from + 2 * head.token_row, head.qkv_row, first_key, shape.sequence, head_size, T(1), v);
  for (Index first_query = first_key; first_query < shape.sequence; first_query += tile) {
    __syncthreads();  // the previous queries are no longer read
    load_tile<tile, width>(q_from, head.qkv_row, first_query, shape.sequence, head_size, given.scale, q);
    load_tile<tile, width>(given.dout + head.token_at, head.token_row, first_query, shape.sequence, head_size, T(1), dout);
    __syncthreads();
    T p[own][own];
    T ds[own][own];
    multiply_rows<width>(k, q, head_size, p);
    multiply_rows<width>(v, dout, head_size, ds);
#pragma unroll
    for (int j = 0; j < own; ++j) {
      const Index query = first_query + threadIdx.x + side * j;
      const bool is_there = query < shape.sequence;
      const Index at = head.head * shape.sequence + query;
      const T shift = is_there ? given.log_sum_exp[at] : T(0);
      const T delta = is_there ? given.delta[at] : T(0);
#pragma unroll
      for (int i = 0; i < own; ++i) {
        const bool seen = is_there && first_key + threadIdx.y + side * i <= query;
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
  T one[own];
#pragma unroll
  for (int i = 0; i < own; ++i) one[i] = 1;
  F* const dk_to = given.dqkv + head.qkv_at + head.token_row;
  store_tile<tile, width>(dk, one, first_key, shape.sequence, head_size, dk_to, head.qkv_row);
  store_tile<tile, width>(dv, one, first_key, shape.sequence, head_size, dk_to + head.token_row, head.qkv_row);
}

template <class F, int width, class T = Compute<F>>
__global__ void __launch_bounds__(block_threads) backward_queries(kernels::AttentionShape shape, Arguments<F> given) {
  constexpr int tile = backward_tile<T, width>;
  constexpr int own = tile / side;
  extern __shared__ __align__(16) unsigned char memory[];
  T* const q = reinterpret_cast<T*>(memory);
  T* const dout = q + tile * pitch<width>;
  T* const k = dout + tile * pitch<width>;
  T* const v = k + tile * pitch<width>;
  T* const weights = v + tile * pitch<width>;

  const Index heads = shape.batch * shape.heads;
  const Index tiles = (shape.sequence + tile - 1) / tile;
  const Head<F> head(shape, blockIdx.x % heads);
  const Index first_query = (tiles - 1 - blockIdx.x / heads) * tile;  // queries that see the most keys begin first
  const int head_size = static_cast<int>(shape.head_size);
  const F* const q_from = given.qkv + head.qkv_at;

  T shift[own];
  T delta[own];
  T scale[own];
#pragma unroll
  for (int i = 0; i < own; ++i) {
    const Index query = first_query + threadIdx.y + side * i;
    const Index at = head.head * shape.sequence + query;
    shift[i] = query < shape.sequence ? given.log_sum_exp[at] : T(0);
    delta[i] = query < shape.sequence ? given.delta[at] : T(0);
    scale[i] = given.scale;
  }
  T dq[own][width / side] = {};
  load_tile<tile, width>(q_from, head.qkv_row, first_query, shape.sequence, head_size, given.scale, q);
  load_tile<tile, width>(given.dout + head.token_at, head.token_row, first_query, shape.sequence, head_size, T(1), dout);
  for (Index first_key = 0; first_key <= first_query; first_key += tile) {
    __syncthreads();  // the previous keys are no longer read
    load_tile<tile, width>(q_from + head.token_row, head.qkv_row, first_key, shape.sequence, head_size, T(1), k);
    load_tile<tile, width>(q_from + 2 * head.token_row, head.qkv_row, first_key, shape.sequence, head_size, T(1), v);
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
        const bool seen = query < shape.sequence && first_key + threadIdx.x + side * j <= query;
        ds[i][j] = seen ? exp(p[i][j] - shift[i]) * (ds[i][j] - delta[i]) : T(0);
      }
    }
    keep_weights<tile>(ds, weights);
    __syncwarp();  // a row of weights is written and read by the same warp
    add_weighted_rows<tile, width>(weights, k, dq);
  }
  store_tile<tile, width>(dq, scale, first_query, shape.sequence, head_size, given.dqkv + head.qkv_at, head.qkv_row);
}

}  // namespace

cudaError_t own_backward(const kernels::AttentionShape& shape, const Tensor& qkv, const Tensor& out,
                         const Tensor& log_sum_exp, const Tensor& dout, const Tensor& dqkv, void* deltas,
                         cudaStream_t stream) {
  return with_type_and_width(qkv.dtype(), shape.head_size, [&]<class F, int width>(F, std::integral_constant<int, width>) {
    using T = Compute<F>;
    constexpr int tile = backward_tile<T, width>;
    constexpr std::size_t bytes = shared_bytes<tile, width, T>();
    const Arguments<F> given{static_cast<const F*>(qkv.raw()),
                             static_cast<const F*>(out.raw()),
                             static_cast<const F*>(dout.raw()),
                             static_cast<const T*>(log_sum_exp.raw()),
                             static_cast<T*>(deltas),
                             static_cast<F*>(dqkv.raw()),
                             T(1) / std::sqrt(static_cast<T>(shape.head_size))};
    constexpr Index rows_a_block = block_threads / 32;
    const Index blocks = (shape.batch * shape.sequence * shape.heads + rows_a_block - 1) / rows_a_block;
    cudaError_t result =
        gpu_code::try_launch(sum_deltas<F>, static_cast<unsigned>(blocks), block_threads, 0, stream, shape, given);
    if (result == cudaSuccess) result = launch_tiles(backward_keys<F, width>, shape, tile, bytes, stream, given);
    if (result == cudaSuccess) result = launch_tiles(backward_queries<F, width>, shape, tile, bytes, stream, given);
    return result;
  });
}

}  // namespace stretto::attention
