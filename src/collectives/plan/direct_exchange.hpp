#pragma once
#include "collectives/plan/plan_builder.hpp"

// For algorithms in which each rank exchanges messages with all others at once.
namespace stretto::plans {

// Calls exchange(peer to send to, peer to receive from) so that each other rank comes once in both roles. The order is
// rotated, so that ranks do not all begin with the same peer.
template <class Exchange>
void in_a_circle(int rank, int ranks, Exchange exchange) {
  for (int i = 1; i < ranks; ++i) exchange((rank + i) % ranks, (rank - i + ranks) % ranks);
}
// Among the ranks with vectors.
template <class Exchange>
void with_all_peers(const PlanRequest& request, Exchange exchange) {
  in_a_circle(request.rank, request.size, exchange);
}

// The place in a rank's scratch for the contribution of rank r to a sum of `count` elements.
inline Slice slot(int r, std::int64_t count) { return scratch(r * count, count); }

// The sum of all ranks' slots, in rank order. They are filled when the current round is over.
inline void reduce_slots(PlanBuilder& plan, const PlanRequest& request, const Slice& sum) {
  plan.next_round();
  plan.reduce(scratch(0, request.size * sum.count), sum, true);
  plan.use_scratch(request.size * sum.count);
}

}  // namespace stretto::plans
