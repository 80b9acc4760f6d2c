// Operands of attention as pairs of bf16, for processors that multiply them (pair_products.hpp); attention.cpp includes this
// file once for each instruction set.
#if defined(STRETTO_ATTENTION_PAIRS_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef STRETTO_ATTENTION_PAIRS_INL_HPP
#undef STRETTO_ATTENTION_PAIRS_INL_HPP
#else
#define STRETTO_ATTENTION_PAIRS_INL_HPP
#endif

#include <algorithm>
#include <cstring>
#include <initializer_list>

#include "device/cpu/attention/attention_tiles-inl.hpp"
#include "device/cpu/attention/pair_products.hpp"
#include "device/cpu/matmul_primitive.hpp"

HWY_BEFORE_NAMESPACE();
namespace stretto::kernels::attention::HWY_NAMESPACE {

using kernels::HWY_NAMESPACE::load_lanes;
using kernels::HWY_NAMESPACE::narrow_normal;
using kernels::HWY_NAMESPACE::narrow_normal_pairs;
using kernels::HWY_NAMESPACE::store_lanes;
using kernels::HWY_NAMESPACE::Type;

// Whether products of T are computed from pairs of bf16: if all operands are of that type.
template <class T>
bool are_paired(std::initializer_list<DType> operands) {
  const auto is_bf16 = [](DType dtype) { return dtype == DType::bf16; };
  return HWY_TARGET == HWY_AVX3 && std::is_same_v<T, float> && std::all_of(operands.begin(), operands.end(), is_bf16) &&
         cpu::processor_multiplies_bf16();
}

// The rows of a head's keys and of a tile's queries as pairs of two columns.
class ColumnPairs {
 public:
  ColumnPairs(Index keys, Index head_size)
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
    pair_products(width, pairs_, {keys_ + key * pitch_, pitch_, 1}, query_columns_ + first_query, tile, products, tile,
                  false, factor);
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

// Rows of a head as pairs of two rows: from(row)[column] has the element of an even row and that of the row after it.
class RowPairs {
 public:
  RowPairs(Index rows, Index head_size)
      : rows_(rows),
        columns_(padded<std::int32_t>(head_size)),
        scratch_(rows / 2 * columns_),
        pairs_(scratch_.take(rows / 2 * columns_)) {}

  // The first `count` rows, and zeros for the others.
  void load(const Rows& from, Index count, Index d) const {
    const hn::Rebind<std::uint32_t, Vectors<float>> v;
    const hn::Rebind<std::uint16_t, Vectors<float>> narrow;
    for (Index row = 0; row < rows_; row += 2) {
      std::int32_t* const to = pairs_ + row / 2 * columns_;
      for_each_vector(v, d, [&](Index column, auto which) HWY_ATTR {
        const auto of_row = [&](Index r) HWY_ATTR {
          return r < count ? hn::PromoteTo(v, load_lanes(narrow, from.from(r).at(column).first, which)) : hn::Zero(v);
        };
        store_lanes(v, hn::Or(of_row(row), hn::ShiftLeft<16>(of_row(row + 1))), to + column);
      });
    }
  }

  const std::int32_t* from(Index even_row) const { return pairs_ + even_row / 2 * columns_; }
  Index columns() const { return columns_; }

 private:
  Index rows_, columns_;
  Scratch<std::int32_t> scratch_;
  std::int32_t* pairs_;
};

// Like PlainTile, rounded to bf16: in pairs of two keys for products that add up over keys, of two queries for the others.
struct PairedTile {
  std::int32_t* of_keys;     // [key / 2][query]
  std::int32_t* of_queries;  // [key][query / 2]; null if there is no such product

  template <class V>
  HWY_INLINE void put([[maybe_unused]] Index key, [[maybe_unused]] Index column, [[maybe_unused]] V first,
                      [[maybe_unused]] V second) const {
    if constexpr (std::is_same_v<V, hn::Vec<Vectors<float>>>) {  // f64 has no pairs
      const Vectors<float> d;
      if (of_keys != nullptr) {
        store_lanes(hn::RebindToUnsigned<Vectors<float>>(), narrow_normal_pairs(d, first, second),
                    of_keys + key / 2 * tile + column);
      }
      if (of_queries == nullptr) return;
      const hn::Rebind<std::uint16_t, Vectors<float>> narrow;
      std::int32_t* const to = of_queries + (key * tile + column) / 2;
      store_lanes(narrow, narrow_normal(d, Type<bf16>{}, first), to);
      store_lanes(narrow, narrow_normal(d, Type<bf16>{}, second), to + tile / 2);
    }
  }

  // The left operand of a product for the row group of queries (keys) that begins at `query` (`key`). The product sums over
  // keys (queries) from an even number on.
  PairOperand by_query(Index query, Index first_key) const { return {of_keys + first_key / 2 * tile + query, 1, tile}; }
  PairOperand by_key(Index key, Index first_query) const {
    return {of_queries + (key * tile + first_query) / 2, tile / 2, 1};
  }
};

// Like product of tiles, with a depth of `count` elements of the pairs.
template <class T>
void product(Index columns, Index count, PairOperand a, const RowPairs& b, Index first_row, T* c, Index c_row,
             bool accumulate) {
  if constexpr (std::is_same_v<T, float>) {
    pair_products(columns, (count + 1) / 2, a, b.from(first_row), b.columns(), c, c_row, accumulate);
  }
}

}  // namespace stretto::kernels::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
