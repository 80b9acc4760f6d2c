// The products of attention that have a row for each key and a column for each query; attention.cpp includes this file once
// for each instruction set.
#if defined(STRETTO_ATTENTION_SCORES_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef STRETTO_ATTENTION_SCORES_INL_HPP
#undef STRETTO_ATTENTION_SCORES_INL_HPP
#else
#define STRETTO_ATTENTION_SCORES_INL_HPP
#endif

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "device/cpu/attention/attention_tiles-inl.hpp"
#include "device/cpu/attention/pair_products.hpp"
#include "device/cpu/matmul_primitive.hpp"
#include "device/kernels/attention_block.hpp"

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

inline Index whole_groups(Index rows) { return (rows + row_group - 1) / row_group * row_group; }

// The rows of a head's keys and of a tile's queries, as pairs of bf16: two columns of a row each.
class PairedRows {
 public:
  PairedRows(Index keys, Index head_size)
      : pairs_((head_size + 1) / 2),
        pitch_(padded<std::int32_t>(pairs_)),
        scratch_((whole_groups(keys) + 2 * tile) * pitch_),
        keys_(scratch_.take(whole_groups(keys) * pitch_)),
        queries_(scratch_.take(tile * pitch_)),
        query_columns_(scratch_.take(tile * pitch_)) {}

  void load_keys(const Rows& rows, Index count, Index d) const { copy(rows, count, d, keys_, whole_groups(count)); }
  void load_queries(const Rows& rows, Index count, Index d) const {
    copy(rows, count, d, queries_, tile);
    transpose(queries_, pairs_, query_columns_);
  }
  void multiply(Index key, Index first_query, Index width, float factor, float* products) const {
    pair_products(width, pairs_, keys_ + key * pitch_, pitch_, query_columns_ + first_query, products, factor);
  }

 private:
  // Zeros follow the columns of each row, and the rows.
  void copy(const Rows& rows, Index count, Index d, std::int32_t* to, Index all_rows) const {
    const auto bytes = static_cast<std::size_t>(d) * sizeof(bf16);
    for (Index row = 0; row < count; ++row) {
      std::int32_t* const at = to + row * pitch_;
      std::fill_n(at + d / 2, pitch_ - d / 2, 0);
      std::memcpy(at, rows.from(row).first, bytes);
    }
    std::fill_n(to + count * pitch_, (all_rows - count) * pitch_, 0);
  }

  Index pairs_, pitch_;
  Scratch<std::int32_t> scratch_;
  std::int32_t *keys_, *queries_, *query_columns_;
};

// Products of the rows of a head's keys (or values) with those of a tile's queries (or of gradients of their outputs), which
// the caller may also use as rows of T: of keys if keeps_keys, of queries if keeps_queries. Where the processor multiplies
// bf16 and both are of that type, the products are its own.
template <class T>
class Scores {
 public:
  Scores(const AttentionBlock& block, DType keys, DType queries, bool keeps_keys, bool keeps_queries)
      : d_(block.head_size),
        paired_(are_paired(keys, queries) ? std::make_optional<PairedRows>(block.keys, d_) : std::nullopt),
        scratch_((keys_kept(block, keeps_keys) + 2 * tile) * padded<T>(d_)),
        keys_(keys_kept(block, keeps_keys) > 0 ? scratch_.take(whole_groups(block.keys) * columns_) : nullptr),
        queries_(keeps_queries || !paired_ ? scratch_.take(tile * columns_) : nullptr),
        query_columns_(paired_ ? nullptr : scratch_.take(tile * columns_)) {}

  void load_keys(const Rows& rows, Index count) {
    if (keys_ != nullptr) load_rows(rows, count, d_, T(1), keys_, whole_groups(count));
    if (paired_) paired_->load_keys(rows, count, d_);
  }
  // The products are those with the queries' rows times the factor.
  void load_queries(const Rows& rows, Index count, T factor) {
    factor_ = factor;
    if (queries_ != nullptr) load_rows(rows, count, d_, factor, queries_, tile);
    if (paired_) {
      paired_->load_queries(rows, count, d_);
    } else {
      transpose(queries_, d_, query_columns_);
    }
  }
  const T* keys() const { return keys_; }
  const T* queries() const { return queries_; }

  // products[key][query] for those row groups of the keys from first_key on, and vectors of queries, of which some query
  // sees some key.
  void multiply(const TileMask& mask, Index first_key, Index count, T* products) const {
    for (Index key = 0; key < count; key += row_group) {
      const Range seen = mask.queries_of(key / row_group);
      const Index first = seen.first / lanes<T>() * lanes<T>();
      const Index width = (seen.last - first + lanes<T>() - 1) / lanes<T>() * lanes<T>();
      T* const to = products + key * tile + first;
      if constexpr (std::is_same_v<T, float>) {
        if (paired_) {
          paired_->multiply(first_key + key, first, width, factor_, to);
          continue;
        }
      }
      product<T>(width, d_, {keys_ + (first_key + key) * columns_, columns_, 1}, query_columns_ + first, tile, to, tile,
                 false);
    }
  }

 private:
  static bool are_paired(DType keys, DType queries) {
    return std::is_same_v<T, float> && hn::MaxLanes(Vectors<float>()) == 16 && keys == DType::bf16 &&
           queries == DType::bf16 && cpu::processor_multiplies_bf16();
  }
  Index keys_kept(const AttentionBlock& block, bool keeps) const { return keeps || !paired_ ? whole_groups(block.keys) : 0; }

  Index d_;
  Index columns_ = padded<T>(d_);
  std::optional<PairedRows> paired_;
  Scratch<T> scratch_;
  T *keys_, *queries_, *query_columns_;
  T factor_ = 1;
};

}  // namespace stretto::kernels::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
