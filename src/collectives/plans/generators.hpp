#pragma once
#include "collectives/plan/plan_builder.hpp"
#include "stretto/planning/cost.hpp"

// One function for each family and collective, and its cost; repertoire.cpp lists them.
namespace stretto::plans {

// The unit of the costs: n/p elements or, if shares are uneven, the longest share.
inline double longest_share(const PlanRequest& request) {
  if (!request.counts.empty()) return static_cast<double>(Shares::of(request).longest());
  const auto count = static_cast<double>(request.count);
  return counts_shares(request.collective) ? count : count / request.size;
}

// The shares that an all_to_all receives from each rank; Shares::of() gives those that it sends.
Shares incoming_shares(const PlanRequest& request);

#define STRETTO_PLAN(name)               \
  Plan name(const PlanRequest& request); \
  Cost name##_cost(const PlanRequest& request)

STRETTO_PLAN(ring_all_reduce);
STRETTO_PLAN(ring_reduce_scatter);
STRETTO_PLAN(ring_all_gather);

STRETTO_PLAN(halving_doubling_all_reduce);
STRETTO_PLAN(halving_reduce_scatter);
STRETTO_PLAN(doubling_all_gather);

STRETTO_PLAN(recursive_doubling_all_reduce);

STRETTO_PLAN(tree_broadcast);
STRETTO_PLAN(tree_reduce);
STRETTO_PLAN(tree_gather);
STRETTO_PLAN(tree_scatter);

STRETTO_PLAN(chain_broadcast);
STRETTO_PLAN(chain_reduce);

STRETTO_PLAN(double_tree_all_reduce);
STRETTO_PLAN(double_tree_broadcast);
STRETTO_PLAN(double_tree_reduce);

STRETTO_PLAN(scatter_all_gather_broadcast);
STRETTO_PLAN(reduce_scatter_gather_reduce);

STRETTO_PLAN(pairwise_all_to_all);
STRETTO_PLAN(pairwise_reduce_scatter);

STRETTO_PLAN(bruck_all_gather);
STRETTO_PLAN(bruck_all_to_all);

STRETTO_PLAN(direct_all_to_all);
STRETTO_PLAN(direct_all_gather);
STRETTO_PLAN(direct_reduce_scatter);
STRETTO_PLAN(one_shot_all_reduce);
STRETTO_PLAN(two_shot_all_reduce);
STRETTO_PLAN(server_set_all_reduce);
STRETTO_PLAN(direct_broadcast);
STRETTO_PLAN(direct_reduce);
STRETTO_PLAN(direct_gather);
STRETTO_PLAN(direct_scatter);
STRETTO_PLAN(direct_send);
STRETTO_PLAN(direct_recv);

STRETTO_PLAN(packet_all_reduce);
STRETTO_PLAN(packet_reduce);
STRETTO_PLAN(push_all_reduce);
STRETTO_PLAN(push_broadcast);
STRETTO_PLAN(push_reduce);
STRETTO_PLAN(shared_all_reduce);      // staged and pull
STRETTO_PLAN(shared_reduce);          // staged and pull
STRETTO_PLAN(shared_reduce_scatter);  // packet, staged and pull, like the following
STRETTO_PLAN(shared_all_gather);
STRETTO_PLAN(shared_all_to_all);
STRETTO_PLAN(shared_broadcast);
STRETTO_PLAN(shared_gather);
STRETTO_PLAN(shared_scatter);

STRETTO_PLAN(two_level);  // for all collectives that have one
LevelCost two_level_cost_by_level(const PlanRequest& request);

Plan quantized(const PlanRequest& request);  // for all collectives that can be quantized
// The costs of its parts, which follow each other. The pieces of a part are in flight at the same time.
std::vector<LevelCost> quantized_phases(const PlanRequest& request);
void check_quantized(const PlanRequest& request);  // throws if the request cannot be quantized, and names the possible ones

#undef STRETTO_PLAN

}  // namespace stretto::plans
