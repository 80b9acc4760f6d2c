#pragma once
#include "planning/step/collective_costs.hpp"

// The sets of postponed buckets that the planner tries. The knobs define the buckets.
namespace stretto {

// Each set is a flag for each bucket, or empty for no bucket: no bucket, all, and the choice of best_postponed() from the
// buckets' times on the cluster's links, as the trainer makes it from measured times.
std::vector<std::vector<bool>> postponed_sets(const StepGraph& graph, CollectiveCosts& costs, const StepKnobs& knobs);

// Carries a set over to the buckets of other knobs: a bucket of `to` is postponed if its first gradient was in `from`.
std::vector<bool> same_postponed(const StepGraph& graph, const StepKnobs& from, const StepKnobs& to);

}  // namespace stretto
