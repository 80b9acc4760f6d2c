#pragma once
#include <vector>

#include "collectives/plan/plan_builder.hpp"

// A bucket's elements are divided among the ranks of a group in rank order; shares differ by at most one element.
namespace stretto {

inline std::vector<std::int64_t> share_counts(std::int64_t elements, int ranks) {
  std::vector<std::int64_t> counts;
  counts.reserve(static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    counts.push_back(part_begin(elements, ranks, rank + 1) - part_begin(elements, ranks, rank));
  }
  return counts;
}

}  // namespace stretto
