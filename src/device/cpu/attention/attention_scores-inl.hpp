// The products of attention that have a row for each key and a column for each query; attention.cpp includes this file once
// for each instruction set.
#if defined(STRETTO_ATTENTION_SCORES_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef STRETTO_ATTENTION_SCORES_INL_HPP
#undef STRETTO_ATTENTION_SCORES_INL_HPP
#else
#define STRETTO_ATTENTION_SCORES_INL_HPP
#endif

#include <optional>

#include "device/cpu/attention/attention_pairs-inl.hpp"
#include "device/kernels/attention_block.hpp"

HWY_BEFORE_NAMESPACE();
namespace stretto::kernels::attention::HWY_NAMESPACE {

// The rows that Scores keeps for other products: those of keys, of queries, and of queries widened to T.
struct Kept {
  bool keys = false, queries = false, widened_queries = false;
};

// Products of the rows of a head's keys (or values) with those of a tile's queries (or of gradients of their outputs). If
// paired, all rows are bf16, the products are the processor's own, and rows for other products are kept as pairs, else as T.
template <class T>
class Scores {
 public:
  Scores(const AttentionBlock& block, bool paired, const Kept& kept)
      : d_(block.head_size),
        paired_(paired ? std::make_optional<ColumnPairs>(block.keys, d_) : std::nullopt),
        key_pairs_(paired && kept.keys ? whole_groups(block.keys) : 0, d_),
        query_pairs_(paired && kept.queries ? tile : 0, d_),
        scratch_(((paired ? 0 : whole_groups(block.keys) + tile) + (paired && !kept.widened_queries ? 0 : tile)) * columns_),
        keys_(paired ? nullptr : scratch_.take(whole_groups(block.keys) * columns_)),
        queries_(paired && !kept.widened_queries ? nullptr : scratch_.take(tile * columns_)),
        query_columns_(paired ? nullptr : scratch_.take(tile * columns_)) {}

  void load_keys(const Rows& rows, Index count) {
    if (keys_ != nullptr) load_rows(rows, count, d_, T(1), keys_, whole_groups(count));
    if (paired_) paired_->load_keys(rows, count, d_);
    key_pairs_.load(rows, count, d_);
  }
  // Unless paired, products are computed with the queries' rows times the factor.
  void load_queries(const Rows& rows, Index count, T factor) {
    factor_ = factor;
    if (queries_ != nullptr) load_rows(rows, count, d_, factor, queries_, tile);
    if (paired_) {
      paired_->load_queries(rows, count, d_);
      query_pairs_.load(rows, count, d_);
    } else {
      transpose(queries_, columns_, tile, d_, query_columns_, tile);
    }
  }
  T factor_of_products() const { return paired_ ? factor_ : T(1); }  // still to be applied to them
  const T* keys() const { return keys_; }                            // if not paired
  const T* queries() const { return queries_; }                      // times the factor; if not paired, or widened
  const PairColumns& key_pairs() const { return key_pairs_; }        // if paired
  const RowPairs& query_pairs() const { return query_pairs_; }       // if paired; without the factor

  // Computes products[key][query] for the keys from first_key on, but only for row groups of keys and vectors of queries in
  // which some query sees some key.
  void multiply(const TileMask& mask, Index first_key, Index count, T* products) const {
    if constexpr (std::is_same_v<T, float>) {
      if (paired_) return multiply_pairs(mask, first_key, count, products);
    }
    for (Index key = 0; key < count; key += row_group) {
      const Range seen = mask.queries_of(key / row_group);
      const Index first = seen.first / lanes<T>() * lanes<T>();
      const Index width = (seen.last - first + lanes<T>() - 1) / lanes<T>() * lanes<T>();
      T* const to = products + key * tile + first;
      product<T>(width, d_, {keys_ + (first_key + key) * columns_, columns_, 1}, query_columns_ + first, tile, to, tile,
                 false);
    }
  }

 private:
  void multiply_pairs(const TileMask& mask, Index first_key, Index count, float* products) const {
    for (Index key = 0; key < count; key += block_rows) {
      const Index keys = std::min(block_rows, count - key);
      const Range seen = range_of_block([&](Index group) { return mask.queries_of(group); }, key, key + keys, tile);
      if (seen.first == seen.last) continue;
      paired_->multiply(first_key + key, keys, seen.first, seen.last - seen.first, products + key * tile + seen.first);
    }
  }

  Index d_;
  Index columns_ = padded<T>(d_);
  std::optional<ColumnPairs> paired_;
  PairColumns key_pairs_;
  RowPairs query_pairs_;
  Scratch<T> scratch_;
  T *keys_, *queries_, *query_columns_;
  T factor_ = 1;
};

}  // namespace stretto::kernels::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
