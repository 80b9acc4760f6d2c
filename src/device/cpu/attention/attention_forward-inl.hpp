// Attention of the heads that share keys and values; attention.cpp includes this file once for each instruction set.
#if defined(STRETTO_ATTENTION_FORWARD_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef STRETTO_ATTENTION_FORWARD_INL_HPP
#undef STRETTO_ATTENTION_FORWARD_INL_HPP
#else
#define STRETTO_ATTENTION_FORWARD_INL_HPP
#endif

#include <algorithm>
#include <cmath>

#include "device/cpu/attention/attention_scores-inl.hpp"
#include "device/cpu/attention/attention_softmax-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace stretto::kernels::attention::HWY_NAMESPACE {

// Attention of the heads of queries that share the keys and values given to load().
template <class T>
class ForwardHeads {
 public:
  ForwardHeads(const AttentionBlock& block, bool paired, bool merge)
      : block_(block),
        mask_(block),
        merge_(merge),
        paired_(paired),
        products_(block, paired_, {}),
        value_pairs_(paired_ ? rows_ : 0, block.head_size),
        scratch_(((paired_ ? 0 : rows_) + 2 * tile) * columns_ + tile * tile),
        pair_scratch_(paired_ ? tile * tile / 2 : 0) {}

  void begin_sequence(Index number) { mask_.begin_sequence(number); }

  void load(const Rows& k, const Rows& v) {
    products_.load_keys(k, block_.keys);
    value_pairs_.load(v, block_.keys, d_);
    if (!paired_) load_rows(v, block_.keys, d_, T(1), v_, rows_);
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
      std::fill_n(paired_ ? o_columns_ : o_, tile * columns_, T(0));
    }
    finish(width, running_);
    std::copy_n(running_.top, queries, log_sum_exp);
    if (paired_) transpose(o_columns_, tile, columns_, tile, o_, columns_);
    store_rows(
        o_, queries, d_, [&](Index row) { return running_.sum[row]; }, out, false);
  }

  void begin(Index queries, const Rows& q, const Rows& out, const T* log_sum_exp) {
    products_.load_queries(q, queries, T(1) / std::sqrt(static_cast<T>(d_)));
    running_.begin();
    if (!merge_) return;
    running_.go_on_from(log_sum_exp, queries);
    load_rows(out, queries, d_, T(1), o_, tile);
    if (paired_) transpose(o_, columns_, tile, columns_, o_columns_, tile);
  }

  void add_tile(TileMask::Sees sees, Index queries, Index first_key, Index keys, Index width, bool to_sums) {
    products_.multiply(mask_, first_key, keys, scores_);
    if (paired_) {
      softmax(sees, pairs_, keys, width);
      if (to_sums) scale_columns(o_columns_, columns_, width, running_.correction);
      if constexpr (std::is_same_v<T, float>) {
        add_over_keys(mask_, value_pairs_, columns_, first_key, pairs_, keys, width, o_columns_, to_sums);
      }
      return;
    }
    softmax(sees, PlainTile<T>{scores_}, keys, width);
    for (Index query = 0; query < queries; query += row_group) {
      T* const o_rows = o_ + query * columns_;
      if (to_sums) scale_rows(o_rows, columns_, running_.correction + query);
      const Range seen = mask_.keys_of(query / row_group);
      const Index count = seen.last - seen.first;
      const Index value = first_key + seen.first;
      product<T>(columns_, count, {scores_ + seen.first * tile + query, 1, tile}, v_ + value * columns_, columns_, o_rows,
                 columns_, to_sums);
    }
  }

  template <class Tile>
  void softmax(TileMask::Sees sees, const Tile& to, Index keys, Index width) {
    if (sees == TileMask::Sees::all) {
      softmax_tile<false>(scores_, products_.factor_of_products(), to, mask_, keys, width, running_);
    } else {
      softmax_tile<true>(scores_, products_.factor_of_products(), to, mask_, keys, width, running_);
    }
  }

  const AttentionBlock& block_;
  TileMask mask_;
  bool merge_;
  Index d_ = block_.head_size;
  Index columns_ = padded<T>(d_);
  Index rows_ = whole_groups(block_.keys);
  bool paired_;
  Scores<T> products_;
  PairProducts uses_pairs_{paired_};
  PairColumns value_pairs_;
  Scratch<T> scratch_;
  T* v_ = paired_ ? nullptr : scratch_.take(rows_ * columns_);
  T* o_ = scratch_.take(tile * columns_);
  T* o_columns_ = scratch_.take(tile * columns_);  // if paired, sums have a row for each column of the head
  T* scores_ = scratch_.take(tile * tile);
  Scratch<std::int32_t> pair_scratch_;
  PairedTile pairs_{paired_ ? pair_scratch_.take(tile * tile / 2) : nullptr, nullptr};  // of the scores
  Running<T> running_;
};

}  // namespace stretto::kernels::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
