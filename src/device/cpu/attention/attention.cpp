#include <algorithm>
#include <cmath>
#include <utility>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/attention/attention.cpp"
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS                                                              \
  (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | \
   HWY_RVV)  // those of x86 as everywhere; the vectors of the others have no arrays
#include <hwy/foreach_target.h>
// After foreach_target.h, which includes this file again:
#include "device/cpu/attention/attention_softmax-inl.hpp"
#include "device/cpu/cpu_level.hpp"
#include "device/cpu/host_kernels.hpp"

HWY_BEFORE_NAMESPACE();
namespace stretto::kernels::attention::HWY_NAMESPACE {

// Parts of one allocation, each beginning at a cache line.
template <class T>
class Scratch {
 public:
  explicit Scratch(Index elements) : memory_({elements}, dtype_of<T>, Device::cpu), next_(memory_.data<T>()) {}
  T* take(Index elements) { return std::exchange(next_, next_ + padded<T>(elements)); }

 private:
  MemoryScope scope_{MemoryKind::other};
  Tensor memory_;
  T* next_;
};

// One head of one sequence within qkv.
template <class F>
struct Head {
  const F *q, *k, *v;
  Index row;  // elements from one token to the next
  Index d, sequence;
};

template <class F>
Head<F> head_of(const AttentionShape& shape, const F* qkv, Index batch, Index head) {
  const Index hidden = shape.heads * shape.head_size;
  const F* q = qkv + batch * shape.sequence * 3 * hidden + head * shape.head_size;
  return {q, q + hidden, q + 2 * hidden, 3 * hidden, shape.head_size, shape.sequence};
}

// scores[key][query] for the queries of a tile; first_query is relative to the block's first key.
template <class T>
void key_by_query_products(const T* key_rows, const T* query_columns, Index d, Index first_query, Index keys, Index width,
                           T* scores) {
  const Index columns = padded<T>(d);
  for (Index key = 0; key < keys; key += row_group) {
    // Earlier queries see none of these keys.
    const Index first = std::max<Index>(0, key - first_query) / lanes<T>() * lanes<T>();
    product<T>(width - first, d, {key_rows + key * columns, columns, 1}, query_columns + first, tile,
               scores + key * tile + first, tile, false);
  }
}

template <class F, class T = Compute<F>>
void forward_head(const Head<F>& head, F* out, Index out_row, T* log_sum_exp) {
  const auto [q_from, k_from, v_from, row, d, sequence] = head;
  const Index columns = padded<T>(d);
  const Index all_rows = (sequence + row_group - 1) / row_group * row_group;
  Scratch<T> scratch(2 * all_rows * columns + 3 * tile * columns + tile * tile);
  T* const k = scratch.take(all_rows * columns);
  T* const v = scratch.take(all_rows * columns);
  T* const q = scratch.take(tile * columns);
  T* const q_columns = scratch.take(columns * tile);
  T* const o = scratch.take(tile * columns);
  T* const scores = scratch.take(tile * tile);
  Running<T> running;
  load_rows(k_from, row, sequence, d, T(1), k, all_rows);
  load_rows(v_from, row, sequence, d, T(1), v, all_rows);
  for (Index first = 0; first < sequence; first += tile) {
    const Index queries = std::min(tile, sequence - first);
    const Index width = padded<T>(queries);
    load_rows(q_from + first * row, row, queries, d, T(1) / std::sqrt(static_cast<T>(d)), q, tile);
    transpose(q, d, q_columns);
    for (Index block = 0; block < first + queries; block += tile) {
      const Index keys = std::min(tile, first + queries - block);
      key_by_query_products(k + block * columns, q_columns, d, first - block, keys, width, scores);
      softmax_block(scores, first - block, keys, width, block == 0, running);
      for (Index i = 0; i < queries; i += row_group) {
        T* const o_rows = o + i * columns;
        if (block > 0) scale_rows(o_rows, columns, running.correction + i);
        product<T>(columns, std::min(keys, first + i + row_group - block), {scores + i, 1, tile}, v + block * columns,
                   columns, o_rows, columns, block > 0);
      }
    }
    finish(width, running);
    std::copy_n(running.top, queries, log_sum_exp + first);
    for (Index i = 0; i < queries; ++i)
      store_rows(o + i * columns, 1, d, running.sum[i], out + (first + i) * out_row, out_row);
  }
}

template <class F, class T = Compute<F>>
void backward_head(const Head<F>& head, const F* out, const F* dout, Index out_row, const T* log_sum_exp, F* dq_to, F* dk_to,
                   F* dv_to) {
  const auto [q_from, k_from, v_from, row, d, sequence] = head;
  const Index columns = padded<T>(d);
  const Index all_rows = (sequence + row_group - 1) / row_group * row_group;
  const T scale = T(1) / std::sqrt(static_cast<T>(d));
  Scratch<T> scratch(4 * all_rows * columns + 5 * tile * columns + 2 * tile * tile + 2 * tile);
  T* const k = scratch.take(all_rows * columns);
  T* const v = scratch.take(all_rows * columns);
  T* const dk = scratch.take(all_rows * columns);
  T* const dv = scratch.take(all_rows * columns);
  T* const q = scratch.take(tile * columns);
  T* const q_columns = scratch.take(columns * tile);
  T* const o_gradient = scratch.take(tile * columns);
  T* const o_gradient_columns = scratch.take(columns * tile);
  T* const dq = scratch.take(tile * columns);  // holds the outputs at first
  T* const p = scratch.take(tile * tile);
  T* const ds = scratch.take(tile * tile);
  T* const shift = scratch.take(tile);
  T* const delta = scratch.take(tile);
  load_rows(k_from, row, sequence, d, T(1), k, all_rows);
  load_rows(v_from, row, sequence, d, T(1), v, all_rows);
  std::fill_n(dk, all_rows * columns, T(0));
  std::fill_n(dv, all_rows * columns, T(0));
  for (Index first = 0; first < sequence; first += tile) {
    const Index queries = std::min(tile, sequence - first);
    const Index width = padded<T>(queries);
    load_rows(q_from + first * row, row, queries, d, scale, q, tile);
    load_rows(dout + first * out_row, out_row, queries, d, T(1), o_gradient, tile);
    load_rows(out + first * out_row, out_row, queries, d, T(1), dq, tile);
    transpose(q, d, q_columns);
    transpose(o_gradient, d, o_gradient_columns);
    for (Index i = 0; i < tile; ++i) {
      shift[i] = i < queries ? log_sum_exp[first + i] : 0;
      delta[i] = dot(dq + i * columns, o_gradient + i * columns, columns);  // the sum over the keys of p dp
    }
    for (Index block = 0; block < first + queries; block += tile) {
      const Index keys = std::min(tile, all_rows - block);  // whole row groups; no query sees keys after the last one
      T* const k_rows = k + block * columns;
      key_by_query_products(k_rows, q_columns, d, first - block, keys, width, p);
      key_by_query_products(v + block * columns, o_gradient_columns, d, first - block, keys, width, ds);
      softmax_backward_block(p, ds, first - block, keys, width, shift, delta);
      for (Index key = 0; key < keys; key += row_group) {
        const Index i = std::max<Index>(0, block + key - first);  // the first query that sees this key
        if (i >= queries) break;
        const Index to = (block + key) * columns;
        const Index from = key * tile + i;
        product<T>(columns, queries - i, {p + from, tile, 1}, o_gradient + i * columns, columns, dv + to, columns, true);
        product<T>(columns, queries - i, {ds + from, tile, 1}, q + i * columns, columns, dk + to, columns, true);
      }
      for (Index i = 0; i < queries; i += row_group) {
        product<T>(columns, std::min(keys, first + i + row_group - block), {ds + i, 1, tile}, k_rows, columns,
                   dq + i * columns, columns, block > 0);
      }
    }
    store_rows(dq, queries, d, scale, dq_to + first * row, row);
  }
  store_rows(dk, sequence, d, T(1), dk_to, row);
  store_rows(dv, sequence, d, T(1), dv_to, row);
}

template <class F>
void forward_all(const AttentionShape& shape, const Tensor& qkv, const Tensor& out, const Tensor& log_sum_exp) {
  const Index hidden = shape.heads * shape.head_size;
  for (Index batch = 0; batch < shape.batch; ++batch) {
    for (Index head = 0; head < shape.heads; ++head) {
      forward_head<F>(head_of(shape, qkv.data<F>(), batch, head),
                      out.data<F>() + batch * shape.sequence * hidden + head * shape.head_size, hidden,
                      log_sum_exp.data<Compute<F>>() + (batch * shape.heads + head) * shape.sequence);
    }
  }
}

template <class F>
void backward_all(const AttentionShape& shape, const Tensor& qkv, const Tensor& out, const Tensor& log_sum_exp,
                  const Tensor& dout, const Tensor& dqkv) {
  const Index hidden = shape.heads * shape.head_size;
  for (Index batch = 0; batch < shape.batch; ++batch) {
    for (Index head = 0; head < shape.heads; ++head) {
      const Index at = batch * shape.sequence * hidden + head * shape.head_size;
      F* const dq = dqkv.data<F>() + batch * shape.sequence * 3 * hidden + head * shape.head_size;
      backward_head<F>(head_of(shape, qkv.data<F>(), batch, head), out.data<F>() + at, dout.data<F>() + at, hidden,
                       log_sum_exp.data<Compute<F>>() + (batch * shape.heads + head) * shape.sequence, dq, dq + hidden,
                       dq + 2 * hidden);
    }
  }
}

void forward(const AttentionShape& shape, const Tensor& qkv, const Tensor& out, const Tensor& log_sum_exp) {
  with_compute_type(qkv.dtype(), [&]<class F>(F) { forward_all<F>(shape, qkv, out, log_sum_exp); });
}

void backward(const AttentionShape& shape, const Tensor& qkv, const Tensor& out, const Tensor& log_sum_exp,
              const Tensor& dout, const Tensor& dqkv) {
  with_compute_type(qkv.dtype(), [&]<class F>(F) { backward_all<F>(shape, qkv, out, log_sum_exp, dout, dqkv); });
}

}  // namespace stretto::kernels::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace stretto::kernels {
namespace attention {
namespace {

HWY_EXPORT(forward);
HWY_EXPORT(backward);

void dispatch_forward(const AttentionShape& shape, const Tensor& qkv, const Tensor& out, const Tensor& log_sum_exp) {
  STRETTO_DISPATCH(forward)(shape, qkv, out, log_sum_exp);
}

void dispatch_backward(const AttentionShape& shape, const Tensor& qkv, const Tensor& out, const Tensor& log_sum_exp,
                       const Tensor& dout, const Tensor& dqkv) {
  STRETTO_DISPATCH(backward)(shape, qkv, out, log_sum_exp, dout, dqkv);
}

}  // namespace
}  // namespace attention

void cpu::attention_forward(const AttentionShape& shape, const Tensor& qkv, const Tensor& out, const Tensor& log_sum_exp) {
  attention::dispatch_forward(shape, qkv, out, log_sum_exp);
}

void cpu::attention_backward(const AttentionShape& shape, const Tensor& qkv, const Tensor& out, const Tensor& log_sum_exp,
                             const Tensor& dout, const Tensor& dqkv) {
  attention::dispatch_backward(shape, qkv, out, log_sum_exp, dout, dqkv);
}

}  // namespace stretto::kernels
#endif
