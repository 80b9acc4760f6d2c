#pragma once
#include <cstdint>

#include "stretto/export.hpp"

// The keys that a query of attention sees, as data. Kernels skip tiles that no query sees; rings of ranks and planners use
// it for the keys that a rank needs, and for its work. All functions are pure. Their time does not depend on the length of a
// sequence, except for pairs() of unequal strides.
namespace stretto::kernels {

// The positions of a tensor's rows in their whole sequence: row i is token first + i * stride. With split > 0, the rows from
// `split` on are another run: row i is token second + (i - split) * stride. A rank of a ring of c that holds chunks r and
// 2c-1-r of n tokens each (zigzag) has {r * n, 1, n, (2c-1-r) * n}; one that holds every c-th token (striped) has {r, c}.
struct Positions {
  std::int64_t first = 0, stride = 1;
  std::int64_t split = 0, second = 0;

  constexpr std::int64_t at(std::int64_t row) const {
    return split > 0 && row >= split ? second + (row - split) * stride : first + row * stride;
  }
  bool operator==(const Positions&) const = default;
};

// Some rows of a tensor: [begin, end).
struct TokenRange {
  Positions positions;
  std::int64_t begin, end;
};

// A query sees the keys at positions up to its own (causal) or all keys. window, stride and global limit a causal query to
// fewer keys (Child et al. 2019): it sees a key if any of those that are not 0 allows it. The three require `causal`.
struct STRETTO_API AttentionMask {
  bool causal = true;
  std::int64_t window = 0;  // the last `window` positions, the query's own included
  std::int64_t stride = 0;  // the last `stride` positions, and those at distances that are multiples of `stride`
  std::int64_t global = 0;  // the first `global` positions; has no effect without window and stride

  bool operator==(const AttentionMask&) const = default;
  constexpr bool sparse() const { return window > 0 || stride > 0; }
  // A causal query sees all keys at distances below this.
  constexpr std::int64_t near() const { return !sparse() ? INT64_MAX : window > stride ? window : stride; }
  constexpr bool sees(std::int64_t query, std::int64_t key) const {
    if (!causal) return true;
    const std::int64_t distance = query - key;
    return distance >= 0 && (distance < near() || key < global || (stride > 0 && distance % stride == 0));
  }
  // False only if no query of the range sees a key of the range. Exact if queries and keys have equal strides.
  constexpr bool sees_any(const TokenRange& queries, const TokenRange& keys) const;
  // True only if every query of the range sees every key of the range. It may be false for a tile that window, stride and
  // global cover only together; otherwise it is exact.
  constexpr bool sees_all(const TokenRange& queries, const TokenRange& keys) const;
  // The exact number of pairs of a query and a key that the query sees, for positions below 2^30. If queries and keys have
  // unequal strides, the time grows with the number of queries.
  std::int64_t pairs(const TokenRange& queries, const TokenRange& keys) const;
};

// Internal, for these functions: tokens at equal distances.
struct TokenRun {
  std::int64_t first, stride, count;
  constexpr std::int64_t last() const { return first + (count - 1) * stride; }
};
constexpr TokenRun run_of(const TokenRange& range, bool second) {
  const auto [positions, begin, end] = range;
  const std::int64_t split = positions.split > 0 ? positions.split : end;
  const std::int64_t from = second ? (begin > split ? begin : split) : begin;
  const std::int64_t to = second ? end : (end < split ? end : split);
  return {positions.at(from), positions.stride, to > from ? to - from : 0};
}

constexpr bool sees_any(const AttentionMask& mask, const TokenRun& queries, const TokenRun& keys) {
  if (queries.count == 0 || keys.count == 0) return false;
  const std::int64_t farthest = queries.last() - keys.first;
  if (!mask.causal) return true;
  if (farthest < 0) return false;
  if (!mask.sparse() || keys.first < mask.global) return true;
  // Distances are `nearest` and then, at the closest, one every `step`.
  const std::int64_t step = queries.stride == keys.stride ? queries.stride : 1;
  std::int64_t distance = queries.first - keys.last();
  if (distance < 0) distance += (-distance + step - 1) / step * step;
  if (distance > farthest) return false;
  if (distance < mask.near()) return true;
  if (mask.stride == 0) return false;
  if (step == 1) return (distance + mask.stride - 1) / mask.stride * mask.stride <= farthest;
  for (std::int64_t i = 0; i < mask.stride && distance <= farthest; ++i, distance += step) {
    if (distance % mask.stride == 0) return true;
  }
  return false;
}

constexpr bool sees_all(const AttentionMask& mask, const TokenRun& queries, const TokenRun& keys) {
  if (!mask.causal || queries.count == 0 || keys.count == 0) return true;
  if (queries.first < keys.last()) return false;
  if (queries.last() - keys.first < mask.near() || keys.last() < mask.global) return true;
  return mask.stride > 0 && (queries.first - keys.first) % mask.stride == 0 &&
         (queries.count == 1 || queries.stride % mask.stride == 0) && (keys.count == 1 || keys.stride % mask.stride == 0);
}

constexpr bool AttentionMask::sees_any(const TokenRange& queries, const TokenRange& keys) const {
  for (int q = 0; q < 2; ++q) {
    for (int k = 0; k < 2; ++k) {
      if (kernels::sees_any(*this, run_of(queries, q == 1), run_of(keys, k == 1))) return true;
    }
  }
  return false;
}

constexpr bool AttentionMask::sees_all(const TokenRange& queries, const TokenRange& keys) const {
  for (int q = 0; q < 2; ++q) {
    for (int k = 0; k < 2; ++k) {
      if (!kernels::sees_all(*this, run_of(queries, q == 1), run_of(keys, k == 1))) return false;
    }
  }
  return true;
}

}  // namespace stretto::kernels
