#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/attention/attention.cpp"
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS                                                              \
  (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | \
   HWY_RVV)  // those of x86 as everywhere; the vectors of the others have no arrays
#include <hwy/foreach_target.h>
// After foreach_target.h, which includes this file again:
#include "device/cpu/attention/attention_scores-inl.hpp"
#include "device/cpu/attention/attention_softmax-inl.hpp"
#include "device/cpu/cpu_level.hpp"
#include "device/cpu/host_kernels.hpp"
#include "device/kernels/attention_block.hpp"

#ifndef STRETTO_ATTENTION_OPERANDS
#define STRETTO_ATTENTION_OPERANDS
namespace stretto::kernels::attention {

struct Forward {
  const TokenHeads &q, &k, &v, &out;
  const Tensor& log_sum_exp;
  bool merge;
};

struct Backward {
  const TokenHeads &q, &k, &v, &out;
  const Tensor& log_sum_exp;
  const TokenHeads &dout, &dq, &dk, &dv;
  AttentionSums sums;
};

}  // namespace stretto::kernels::attention
#endif

HWY_BEFORE_NAMESPACE();
namespace stretto::kernels::attention::HWY_NAMESPACE {

Rows rows_of(const TokenHeads& heads, Index tokens, Index batch, Index head, Index head_size) {
  const Tensor& tensor = heads.tensor;
  const Rows all{static_cast<std::byte*>(tensor.raw()), tensor.dtype(), tensor.columns()};
  return all.from(batch * tokens).at(heads.first_column + head * head_size);
}

// A head's queries against the keys and values k and v, which are rows of whole vectors in whole row groups.
template <class T>
class ForwardHeads {
 public:
  ForwardHeads(const AttentionBlock& block, const Forward& given)
      : block_(block),
        mask_(block),
        merge_(given.merge),
        products_(block, given.k.tensor.dtype(), given.q.tensor.dtype(), false, false),
        scratch_((whole_groups(block.keys) + tile) * padded<T>(block.head_size) + tile * tile) {}

  void load(const Rows& k, const Rows& v) {
    products_.load_keys(k, block_.keys);
    load_rows(v, block_.keys, d_, T(1), v_, whole_groups(block_.keys));
  }

  void attend(const Rows& q, const Rows& out, T* log_sum_exp) {
    for (Index first = 0; first < block_.queries; first += tile) {
      attend_tile(first, std::min(tile, block_.queries - first), q.from(first), out.from(first), log_sum_exp + first);
    }
  }

 private:
  void attend_tile(Index first_query, Index queries, const Rows& q, const Rows& out, T* log_sum_exp) {
    const Index width = padded<T>(queries);
    bool begun = false;
    for (Index first_key = 0; first_key < block_.keys; first_key += tile) {
      const Index keys = std::min(tile, block_.keys - first_key);
      const TileMask::Sees sees = mask_.look(first_query, queries, first_key, keys);
      if (sees == TileMask::Sees::none) continue;
      if (!begun) begin(queries, q, out, log_sum_exp);
      add_tile(sees, queries, first_key, whole_groups(keys), width, begun || merge_);
      begun = true;
    }
    if (!begun) {
      if (merge_) return;
      begin(queries, q, out, log_sum_exp);
      std::fill_n(o_, tile * columns_, T(0));
    }
    finish(width, running_);
    std::copy_n(running_.top, queries, log_sum_exp);
    store_rows(
        o_, queries, d_, [&](Index row) { return running_.sum[row]; }, out, false);
  }

  void begin(Index queries, const Rows& q, const Rows& out, const T* log_sum_exp) {
    products_.load_queries(q, queries, T(1) / std::sqrt(static_cast<T>(d_)));
    running_.begin();
    if (!merge_) return;
    running_.go_on_from(log_sum_exp, queries);
    load_rows(out, queries, d_, T(1), o_, tile);
  }

  void add_tile(TileMask::Sees sees, Index queries, Index first_key, Index keys, Index width, bool to_sums) {
    products_.multiply(mask_, first_key, keys, scores_);
    if (sees == TileMask::Sees::all) {
      softmax_tile<false>(scores_, mask_, keys, width, running_);
    } else {
      softmax_tile<true>(scores_, mask_, keys, width, running_);
    }
    for (Index query = 0; query < queries; query += row_group) {
      T* const o_rows = o_ + query * columns_;
      if (to_sums) scale_rows(o_rows, columns_, running_.correction + query);
      const Range seen = mask_.keys_of(query / row_group);
      product<T>(columns_, seen.last - seen.first, {scores_ + seen.first * tile + query, 1, tile},
                 v_ + (first_key + seen.first) * columns_, columns_, o_rows, columns_, to_sums);
    }
  }

  const AttentionBlock& block_;
  TileMask mask_;
  bool merge_;
  Index d_ = block_.head_size;
  Index columns_ = padded<T>(d_);
  Scores<T> products_;
  Scratch<T> scratch_;
  T* v_ = scratch_.take(whole_groups(block_.keys) * columns_);
  T* o_ = scratch_.take(tile * columns_);
  T* scores_ = scratch_.take(tile * tile);
  Running<T> running_;
};

template <class T>
class BackwardHeads {
 public:
  BackwardHeads(const AttentionBlock& block, const Backward& given)
      : block_(block),
        mask_(block),
        scores_(block, given.k.tensor.dtype(), given.q.tensor.dtype(), true, true),
        gradients_(block, given.v.tensor.dtype(), given.dout.tensor.dtype(), false, true),
        scratch_((2 * whole_groups(block.keys) + tile) * padded<T>(block.head_size) + 2 * tile * tile + 2 * tile) {}

  void load(const Rows& k, const Rows& v) {
    scores_.load_keys(k, block_.keys);
    gradients_.load_keys(v, block_.keys);
    std::fill_n(dk_, rows_ * columns_, T(0));
    std::fill_n(dv_, rows_ * columns_, T(0));
  }

  void differentiate(const Rows& q, const Rows& out, const T* log_sum_exp, const Rows& dout, const Rows& dq, bool add) {
    for (Index first = 0; first < block_.queries; first += tile) {
      differentiate_tile(first, std::min(tile, block_.queries - first), q.from(first), out.from(first), log_sum_exp + first,
                         dout.from(first), dq.from(first), add);
    }
  }

  void store(const Rows& dk, const Rows& dv, bool add) const {
    store_rows(
        dk_, block_.keys, d_, [](Index) { return T(1); }, dk, add);
    store_rows(
        dv_, block_.keys, d_, [](Index) { return T(1); }, dv, add);
  }

 private:
  void differentiate_tile(Index first_query, Index queries, const Rows& q, const Rows& out, const T* log_sum_exp,
                          const Rows& dout, const Rows& dq, bool add) {
    bool begun = false;
    for (Index first_key = 0; first_key < block_.keys; first_key += tile) {
      const Index keys = std::min(tile, block_.keys - first_key);
      const TileMask::Sees sees = mask_.look(first_query, queries, first_key, keys);
      if (sees == TileMask::Sees::none) continue;
      if (!begun) begin(queries, q, out, log_sum_exp, dout);
      add_tile(sees, queries, first_key, whole_groups(keys), begun);
      begun = true;
    }
    if (!begun) {
      if (add) return;
      std::fill_n(dq_, tile * columns_, T(0));
    }
    store_rows(
        dq_, queries, d_, [&](Index) { return scale_; }, dq, add);
  }

  void begin(Index queries, const Rows& q, const Rows& out, const T* log_sum_exp, const Rows& dout) {
    scores_.load_queries(q, queries, scale_);
    gradients_.load_queries(dout, queries, T(1));
    load_rows(out, queries, d_, T(1), dq_, tile);
    for (Index i = 0; i < tile; ++i) {
      shift_[i] = i < queries ? log_sum_exp[i] : 0;
      delta_[i] = dot(dq_ + i * columns_, gradients_.queries() + i * columns_, columns_);  // the sum over all keys of p dp
    }
  }

  void add_tile(TileMask::Sees sees, Index queries, Index first_key, Index keys, bool to_sums) {
    const Index width = padded<T>(queries);
    scores_.multiply(mask_, first_key, keys, p_);
    gradients_.multiply(mask_, first_key, keys, ds_);
    if (sees == TileMask::Sees::all) {
      softmax_backward_tile<false>(p_, ds_, mask_, keys, width, shift_, delta_);
    } else {
      softmax_backward_tile<true>(p_, ds_, mask_, keys, width, shift_, delta_);
    }
    for (Index key = 0; key < keys; key += row_group) {
      const Range seen_by = mask_.queries_of(key / row_group);
      const Index count = std::min(seen_by.last, queries) - seen_by.first;
      if (count <= 0) continue;
      const Index from = key * tile + seen_by.first;
      const Index to = (first_key + key) * columns_;
      product<T>(columns_, count, {p_ + from, tile, 1}, gradients_.queries() + seen_by.first * columns_, columns_, dv_ + to,
                 columns_, true);
      product<T>(columns_, count, {ds_ + from, tile, 1}, scores_.queries() + seen_by.first * columns_, columns_, dk_ + to,
                 columns_, true);
    }
    for (Index query = 0; query < queries; query += row_group) {
      const Range seen = mask_.keys_of(query / row_group);
      product<T>(columns_, seen.last - seen.first, {ds_ + seen.first * tile + query, 1, tile},
                 scores_.keys() + (first_key + seen.first) * columns_, columns_, dq_ + query * columns_, columns_, to_sums);
    }
  }

  const AttentionBlock& block_;
  TileMask mask_;
  Index d_ = block_.head_size;
  Index columns_ = padded<T>(d_);
  Index rows_ = whole_groups(block_.keys);
  T scale_ = T(1) / std::sqrt(static_cast<T>(d_));
  Scores<T> scores_, gradients_;  // of keys with queries, and of values with gradients of outputs
  Scratch<T> scratch_;
  T* dk_ = scratch_.take(rows_ * columns_);
  T* dv_ = scratch_.take(rows_ * columns_);
  T* dq_ = scratch_.take(tile * columns_);  // holds the outputs at first
  T* p_ = scratch_.take(tile * tile);
  T* ds_ = scratch_.take(tile * tile);
  T* shift_ = scratch_.take(tile);
  T* delta_ = scratch_.take(tile);
};

// Calls visit(batch, kv_head, head, the head's number among those of all sequences) for each head of queries, after
// begin(batch, kv_head) and before end(batch, kv_head).
template <class Begin, class Visit, class End>
void for_each_head(const AttentionBlock& block, Begin begin, Visit visit, End end) {
  const Index kv_heads = kv_heads_of(block);
  for (Index batch = 0; batch < block.batch; ++batch) {
    for (Index kv_head = 0; kv_head < kv_heads; ++kv_head) {
      begin(batch, kv_head);
      const Index group = block.heads / kv_heads;
      for (Index head = kv_head * group; head < (kv_head + 1) * group; ++head) visit(batch, head);
      end(batch, kv_head);
    }
  }
}

template <class T>
void forward_all(const AttentionBlock& block, const Forward& given) {
  ForwardHeads<T> heads(block, given);
  const Index d = block.head_size;
  for_each_head(
      block,
      [&](Index batch, Index kv_head) {
        heads.load(rows_of(given.k, block.keys, batch, kv_head, d), rows_of(given.v, block.keys, batch, kv_head, d));
      },
      [&](Index batch, Index head) {
        heads.attend(rows_of(given.q, block.queries, batch, head, d), rows_of(given.out, block.queries, batch, head, d),
                     given.log_sum_exp.data<T>() + (batch * block.heads + head) * block.queries);
      },
      [](Index, Index) {});
}

template <class T>
void backward_all(const AttentionBlock& block, const Backward& given) {
  BackwardHeads<T> heads(block, given);
  const Index d = block.head_size;
  for_each_head(
      block,
      [&](Index batch, Index kv_head) {
        heads.load(rows_of(given.k, block.keys, batch, kv_head, d), rows_of(given.v, block.keys, batch, kv_head, d));
      },
      [&](Index batch, Index head) {
        const auto rows = [&](const TokenHeads& of) { return rows_of(of, block.queries, batch, head, d); };
        heads.differentiate(rows(given.q), rows(given.out),
                            given.log_sum_exp.data<T>() + (batch * block.heads + head) * block.queries, rows(given.dout),
                            rows(given.dq), given.sums.queries);
      },
      [&](Index batch, Index kv_head) {
        heads.store(rows_of(given.dk, block.keys, batch, kv_head, d), rows_of(given.dv, block.keys, batch, kv_head, d),
                    given.sums.keys);
      });
}

void forward(const AttentionBlock& block, const Forward& given) {
  return given.log_sum_exp.dtype() == DType::f64 ? forward_all<double>(block, given) : forward_all<float>(block, given);
}

void backward(const AttentionBlock& block, const Backward& given) {
  return given.log_sum_exp.dtype() == DType::f64 ? backward_all<double>(block, given) : backward_all<float>(block, given);
}

}  // namespace stretto::kernels::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace stretto::kernels {
namespace attention {
namespace {

HWY_EXPORT(forward);
HWY_EXPORT(backward);

void dispatch_forward(const AttentionBlock& block, const Forward& given) { STRETTO_DISPATCH(forward)(block, given); }
void dispatch_backward(const AttentionBlock& block, const Backward& given) { STRETTO_DISPATCH(backward)(block, given); }

}  // namespace
}  // namespace attention

void cpu::attention_forward(const AttentionBlock& block, const TokenHeads& q, const TokenHeads& k, const TokenHeads& v,
                            const TokenHeads& out, const Tensor& log_sum_exp, bool merge) {
  attention::dispatch_forward(block, {q, k, v, out, log_sum_exp, merge});
}

void cpu::attention_backward(const AttentionBlock& block, const TokenHeads& q, const TokenHeads& k, const TokenHeads& v,
                             const TokenHeads& out, const Tensor& log_sum_exp, const TokenHeads& dout, const TokenHeads& dq,
                             const TokenHeads& dk, const TokenHeads& dv, const AttentionSums& sums) {
  attention::dispatch_backward(block, {q, k, v, out, log_sum_exp, dout, dq, dk, dv, sums});
}

}  // namespace stretto::kernels
#endif
