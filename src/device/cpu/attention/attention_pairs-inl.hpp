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
    transpose(queries_, pitch_, tile, pairs_, query_columns_, tile);
  }
  void multiply(Index key, Index count, Index first_query, Index width, float* products) const {
    pair_products(count, width, pairs_, {keys_ + key * pitch_, pitch_}, query_columns_ + first_query, tile, products, tile,
                  false);
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

  // Operands of products: over keys from an even number on, and over queries.
  const std::int32_t* by_query(Index first_key, Index query) const { return of_keys + first_key / 2 * tile + query; }
  PairRows by_key(Index key, Index first_query) const { return {of_queries + (key * tile + first_query) / 2, tile / 2}; }
};

// The columns of a head's rows, as pairs of two rows: the transposed RowPairs.
class PairColumns {
 public:
  PairColumns(Index rows, Index head_size)
      : rows_(rows),
        pitch_(padded<std::int32_t>(rows / 2) + 16),  // columns do not begin in the same lines of a cache
        tile_pairs_(rows > 0 ? tile : 0, head_size),
        scratch_(rows > 0 ? padded<float>(head_size) * pitch_ : 0),
        pairs_(scratch_.take(0)) {
    std::fill_n(pairs_, rows > 0 ? padded<float>(head_size) * pitch_ : 0, 0);
  }

  void load(const Rows& from, Index count, Index d) const {
    for (Index row = 0; row < rows_; row += tile) {
      tile_pairs_.load(from.from(row), std::clamp<Index>(count - row, 0, tile), d);
      transpose(tile_pairs_.from(0), tile_pairs_.columns(), std::min(tile, rows_ - row) / 2, d, pairs_ + row / 2, pitch_);
    }
  }

  PairRows from(Index even_row) const { return {pairs_ + even_row / 2, pitch_}; }

 private:
  Index rows_, pitch_;
  RowPairs tile_pairs_;
  Scratch<std::int32_t> scratch_;
  std::int32_t* pairs_;
};

// Rows (or columns) that are multiplied together: a multiple of a row group.
constexpr Index block_rows = 32;

// The range that any row group from `first` up to `last` sees, widened to whole blocks, but not beyond `all`.
template <class RangeOf>
Range range_of_block(RangeOf range_of, Index first, Index last, Index all) {
  Range result{all, 0};
  for (Index group = first / row_group; group < (last + row_group - 1) / row_group; ++group) {
    const Range more = range_of(group);
    if (more.first == more.last) continue;
    result = {std::min(result.first, more.first), std::max(result.last, more.last)};
  }
  if (result.last <= result.first) return {0, 0};
  return {result.first / block_rows * block_rows, std::min(all, (result.last + block_rows - 1) / block_rows * block_rows)};
}

// to[column][query] = or += the sum over the tile's keys of rows[key][column] p[key][query], where `first_key` is the tile's
// first.
inline void add_over_keys(const TileMask& mask, const PairColumns& rows, Index columns, Index first_key, const PairedTile& p,
                          Index keys, Index width, float* to, bool accumulate) {
  for (Index query = 0; query < width; query += block_rows) {
    const Index count = std::min(block_rows, width - query);
    const Range seen = range_of_block([&](Index group) { return mask.keys_of(group); }, query, query + count, keys);
    if (seen.first == seen.last && accumulate) continue;
    pair_products(columns, count, (seen.last - seen.first) / 2, rows.from(first_key + seen.first),
                  p.by_query(seen.first, query), tile, to + query, tile, accumulate);
  }
}

}  // namespace stretto::kernels::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
