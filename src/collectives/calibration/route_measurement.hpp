#pragma once
#include <optional>
#include <string>

#include "collectives/selection/select.hpp"
#include "stretto/calibration.hpp"

// The measurements that a job makes at its start. All ranks of the node, or of the job, call them together and get the same
// results. Budgets are in seconds.
namespace stretto {

// Costs and tables of the ranks of one node. Empty if the machine was too slow, or too busy, to get as far as a table must
// reach.
std::optional<MeasuredRoute> within_node(const Communicator& node, double ranks_per_core, double budget);
// `cost` with latency and bandwidth as they are between the first ranks of the first two nodes.
LinkCost between_nodes(const Communicator& world, LinkCost cost);
// The table of ranks on several nodes, whose network has that bandwidth (LinkCost::beta); empty as above.
std::optional<std::string> table_between_nodes(const Communicator& world, const Selector& selector, double beta,
                                               double budget);

}  // namespace stretto
