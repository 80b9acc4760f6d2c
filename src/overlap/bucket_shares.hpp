#pragma once
#include <vector>

#include "collectives/plan_builder.hpp"
#include "stretto/communicator.hpp"

// Which elements of a bucket each rank of a group owns: equal shares in the order of the ranks, up to one element.
namespace stretto {

// Of one count where they are equal: so NCCL takes them.
inline void give_shares(Call& call, std::int64_t elements, int ranks) {
  if (elements % ranks == 0) {
    call.count = elements / ranks;
    return;
  }
  for (int rank = 0; rank < ranks; ++rank) {
    call.counts.push_back(part_begin(elements, ranks, rank + 1) - part_begin(elements, ranks, rank));
  }
}

}  // namespace stretto
