#pragma once
#include "overlap/planner/collective_costs.hpp"

// Which buckets of a planned step to postpone: what the planner tries. The knobs say how gradients are put into buckets.
namespace stretto {

// A flag for each bucket, or nothing for none of them: none, the last ones, all, and those that best_postponed() chooses by
// what the buckets take on the cluster's links. No set has more than `most`.
std::vector<std::vector<bool>> postponed_sets(const StepGraph& graph, CollectiveCosts& costs, const StepKnobs& knobs,
                                              int most);

// The same gradients in other buckets: a bucket is postponed when its first gradient was.
std::vector<bool> same_postponed(const StepGraph& graph, const StepKnobs& from, const StepKnobs& to);

}  // namespace stretto
