#pragma once
#include "overlap/planner/collective_costs.hpp"

namespace stretto {

// The operation tier: for each kind of collective in the graph, the partitions worth trying in the whole step, best first by
// what it and the divisible computation beside it would take by themselves; the plain one among them.
std::map<CollectiveKind, std::vector<Partition>> partitions_worth_trying(const StepGraph& graph, CollectiveCosts& costs,
                                                                         const PlannerOptions& options);

}  // namespace stretto
