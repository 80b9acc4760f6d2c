#pragma once
#include "planning/step/collective_costs.hpp"

namespace stretto {

// The operation tier: for each kind of collective in the graph, the partitions worth trying in the whole step. They are in
// the order of the time that the collective and the divisible computation beside it would take alone; the plain partition is
// always among them.
std::map<CollectiveKind, std::vector<Partition>> partitions_worth_trying(const StepGraph& graph, CollectiveCosts& costs);

}  // namespace stretto
