#pragma once
#include <vector>

#include "collectives/plan/plan_builder.hpp"

// Which elements of a bucket each rank of a group owns: equal shares in the order of the ranks, up to one element.
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
