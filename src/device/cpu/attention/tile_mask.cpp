#include "device/cpu/attention/tile_mask.hpp"

#include <algorithm>
#include <bit>
#include <numeric>

namespace stretto::kernels::attention {
namespace {

// Bits [first, last).
std::uint64_t bits(Index first, Index last) {
  const auto below = [](Index n) { return n >= tile ? ~std::uint64_t{0} : (std::uint64_t{1} << n) - 1; };
  return below(last) & ~below(first);
}

// The first row of a run at the position or after it; the run's number of rows if there is none.
Index row_from(const TokenRun& run, Index position) {
  const Index distance = position - run.first;
  if (distance <= 0) return 0;
  const Index row = run.stride == 1 ? distance : (distance + run.stride - 1) / run.stride;
  return std::min(row, run.count);
}

// The whole row groups from the first to the last of a set of groups.
Range range_of(std::uint64_t groups) {
  if (groups == 0) return {0, 0};
  return {std::countr_zero(groups) * row_group, (64 - std::countl_zero(groups)) * row_group};
}

Index whole_groups(Index rows) { return (rows + row_group - 1) / row_group * row_group; }

}  // namespace

TileMask::Sees TileMask::look(Index first_query, Index queries, Index first_key, Index keys) {
  const TokenRange query_range{block_.query_positions, first_query, first_query + queries};
  const TokenRange key_range{block_.key_positions, first_key, first_key + keys};
  if (!block_.mask.sees_any(query_range, key_range)) return Sees::none;
  // Positions and starts do not decrease from row to row.
  if (starts_ != nullptr && block_.key_positions.at(key_range.end - 1) < starts_[first_query]) return Sees::none;
  const bool begun = starts_ == nullptr || starts_[query_range.end - 1] <= block_.key_positions.at(first_key);
  if (keys % row_group == 0 && begun && block_.mask.sees_all(query_range, key_range)) {
    all_.queries_of.fill({0, whole_groups(queries)});
    all_.keys_of.fill({0, keys});
    ranges_ = &all_;
    return Sees::all;
  }
  ranges_ = &some_;
  mark(query_range, key_range);
  return Sees::some;
}

// The queries of a run that see the key at a position, as bits from 0 on.
std::uint64_t TileMask::seen_in(const TokenRun& queries, Index key) const {
  const AttentionMask& mask = block_.mask;
  if (queries.count == 0) return 0;
  if (!mask.causal) return bits(0, queries.count);
  const Index first = row_from(queries, key);
  if (!mask.sparse() || key < mask.global) return bits(first, queries.count);
  Index row = row_from(queries, key + mask.near());
  std::uint64_t result = bits(first, row);
  if (mask.stride == 0 || row == queries.count) return result;
  // After the first row at a distance that is a multiple of the stride, every `period`-th row is at such a distance.
  const Index period = mask.stride / std::gcd(mask.stride, queries.stride);
  const auto rest = [&] { return (queries.first + row * queries.stride - key) % mask.stride; };
  if (queries.stride == 1) {
    row += (mask.stride - rest()) % mask.stride;
  } else {
    const Index end = std::min(queries.count, row + period);
    while (row < end && rest() != 0) ++row;
    if (row == end) return result;
  }
  for (; row < queries.count; row += period) result |= std::uint64_t{1} << row;
  return result;
}

// The queries whose document has begun at the position, as bits from 0 on.
std::uint64_t TileMask::begun_at(const TokenRange& queries, Index position) const {
  const std::int32_t* const first = starts_ + queries.begin;
  return bits(0, std::upper_bound(first, starts_ + queries.end, position) - first);
}

void TileMask::mark(const TokenRange& queries, const TokenRange& keys) {
  const TokenRun first = run_of(queries, false);
  const TokenRun second = run_of(queries, true);
  const Index count = keys.end - keys.begin;
  const bool only_distances_count = block_.mask.global == 0 && starts_ == nullptr &&
                                    queries.positions.stride == keys.positions.stride && queries.positions.split == 0 &&
                                    keys.positions.split == 0;
  const Marked now{first.first - keys.positions.at(keys.begin), first.count, count};
  if (only_distances_count && marked_ == now) return;
  marked_ = only_distances_count ? now : Marked{};

  const Index all_keys = whole_groups(count);
  std::uint64_t groups_of_queries[groups] = {};  // bit k: some of these queries see some of the k-th group of keys
  for (Index key = 0; key < all_keys; key += row_group) {
    std::uint64_t any = 0;
    for (Index k = key; k < key + row_group; ++k) {
      std::uint64_t word = 0;
      if (k < count) {
        const Index position = keys.positions.at(keys.begin + k);
        word = seen_in(first, position);
        if (second.count > 0) word |= seen_in(second, position) << first.count;
        if (starts_ != nullptr) word &= begun_at(queries, position);
      }
      words_[static_cast<std::size_t>(k)] = word;
      any |= word;
    }
    std::uint64_t seen = 0;
    for (std::size_t group = 0; group < groups; ++group) {
      if (((any >> (group * row_group)) & 0xff) == 0) continue;
      seen |= std::uint64_t{1} << group;
      groups_of_queries[group] |= std::uint64_t{1} << (key / row_group);
    }
    some_.queries_of[static_cast<std::size_t>(key / row_group)] = range_of(seen);
  }
  for (std::size_t group = 0; group < groups; ++group) some_.keys_of[group] = range_of(groups_of_queries[group]);
}

}  // namespace stretto::kernels::attention
