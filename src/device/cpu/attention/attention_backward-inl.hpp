// The gradients of attention of the heads that share keys and values; attention.cpp includes this file once for each
// instruction set.
#if defined(STRETTO_ATTENTION_BACKWARD_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef STRETTO_ATTENTION_BACKWARD_INL_HPP
#undef STRETTO_ATTENTION_BACKWARD_INL_HPP
#else
#define STRETTO_ATTENTION_BACKWARD_INL_HPP
#endif

#include <algorithm>
#include <cmath>

#include "device/cpu/attention/attention_scores-inl.hpp"
#include "device/cpu/attention/attention_softmax-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace stretto::kernels::attention::HWY_NAMESPACE {

// Gradients of the heads of queries that share keys and values, and those of these keys and values: sums over all queries.
template <class T>
class BackwardHeads {
 public:
  BackwardHeads(const AttentionBlock& block, bool paired)
      : block_(block),
        mask_(block),
        paired_(paired),
        scores_(block, paired_, {.keys = true, .queries = true}),
        gradients_(block, paired_, {.queries = true, .widened_queries = true}),
        scratch_((2 * rows_ + 2 * tile) * columns_ + 2 * tile * tile + 2 * tile),
        pair_scratch_(paired_ ? 3 * tile * tile / 2 : 0) {}

  void begin_sequence(Index number) { mask_.begin_sequence(number); }

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
        dk_, block_.keys, d_, [&](Index) { return paired_ ? scale_ : T(1); }, dk, add);  // pairs of queries are not scaled
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
      std::fill_n(paired_ ? dq_columns_ : dq_, tile * columns_, T(0));
    }
    if (paired_) transpose(dq_columns_, tile, columns_, tile, dq_, columns_);
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
    if (paired_) {
      softmax(sees, p_pairs_, ds_pairs_, keys, width);
      if constexpr (std::is_same_v<T, float>) add_pairs(first_key, keys, width, to_sums);
      return;
    }
    softmax(sees, PlainTile<T>{p_}, PlainTile<T>{ds_}, keys, width);
    for (Index key = 0; key < keys; key += row_group) {
      const Range seen_by = mask_.queries_of(key / row_group);
      const Index count = std::min(seen_by.last, queries) - seen_by.first;
      if (count <= 0) continue;
      const Index from = key * tile + seen_by.first;
      const Index query = seen_by.first * columns_;
      T* const dv = dv_ + (first_key + key) * columns_;
      T* const dk = dk_ + (first_key + key) * columns_;
      product<T>(columns_, count, {p_ + from, tile, 1}, gradients_.queries() + query, columns_, dv, columns_, true);
      product<T>(columns_, count, {ds_ + from, tile, 1}, scores_.queries() + query, columns_, dk, columns_, true);
    }
    for (Index query = 0; query < queries; query += row_group) {
      const Range seen = mask_.keys_of(query / row_group);
      const Index count = seen.last - seen.first;
      T* const dq = dq_ + query * columns_;
      product<T>(columns_, count, {ds_ + seen.first * tile + query, 1, tile},
                 scores_.keys() + (first_key + seen.first) * columns_, columns_, dq, columns_, to_sums);
    }
  }

  // Queries that are missing have rows of zeros.
  void add_pairs(Index first_key, Index keys, Index width, bool to_sums) {
    for (Index key = 0; key < keys; key += block_rows) {
      const Index count = std::min(block_rows, keys - key);
      const Range seen_by = range_of_block([&](Index group) { return mask_.queries_of(group); }, key, key + count, width);
      const Index pairs = (seen_by.last - seen_by.first) / 2;
      if (pairs == 0) continue;
      const auto add = [&](const PairedTile& tile_of, const RowPairs& rows, float* to) {
        pair_products(count, columns_, pairs, tile_of.by_key(key, seen_by.first), rows.from(seen_by.first), rows.columns(),
                      to + (first_key + key) * columns_, columns_, true);
      };
      add(p_pairs_, gradients_.query_pairs(), dv_);
      add(ds_pairs_, scores_.query_pairs(), dk_);
    }
    add_over_keys(mask_, scores_.key_pairs(), columns_, first_key, ds_pairs_, keys, width, dq_columns_, to_sums);
  }

  template <class Tile>
  void softmax(TileMask::Sees sees, const Tile& p, const Tile& ds, Index keys, Index width) {
    if (sees == TileMask::Sees::all) {
      softmax_backward_tile<false>(p_, scores_.factor_of_products(), ds_, p, ds, mask_, keys, width, shift_, delta_);
    } else {
      softmax_backward_tile<true>(p_, scores_.factor_of_products(), ds_, p, ds, mask_, keys, width, shift_, delta_);
    }
  }

  std::int32_t* of_pairs() { return paired_ ? pair_scratch_.take(tile * tile / 2) : nullptr; }

  const AttentionBlock& block_;
  TileMask mask_;
  Index d_ = block_.head_size;
  Index columns_ = padded<T>(d_);
  Index rows_ = whole_groups(block_.keys);
  T scale_ = T(1) / std::sqrt(static_cast<T>(d_));
  bool paired_;
  PairProducts uses_pairs_{paired_};
  Scores<T> scores_, gradients_;  // of keys with queries, and of values with gradients of outputs
  Scratch<T> scratch_;
  T* dk_ = scratch_.take(rows_ * columns_);
  T* dv_ = scratch_.take(rows_ * columns_);
  T* dq_ = scratch_.take(tile * columns_);          // holds the outputs at first
  T* dq_columns_ = scratch_.take(tile * columns_);  // if paired, sums have a row for each column of the head
  T* p_ = scratch_.take(tile * tile);
  T* ds_ = scratch_.take(tile * tile);
  T* shift_ = scratch_.take(tile);
  T* delta_ = scratch_.take(tile);
  Scratch<std::int32_t> pair_scratch_;
  PairedTile p_pairs_{nullptr, of_pairs()}, ds_pairs_{of_pairs(), of_pairs()};
};

}  // namespace stretto::kernels::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
