#pragma once
#include <vector>

#include "collectives/calibration/sweep.hpp"
#include "collectives/selection/select.hpp"
#include "stretto/calibration.hpp"

// The measurements that a job makes at its start. All ranks of the node, or of the job, call them together and get the same
// results.
namespace stretto {

// A table speaks of so many times as many bytes as were measured; beyond, the model does. Within a node it may speak of many
// more: of all that comes from memory, and not from caches, which the model knows least. (2 MiB may be the largest call.)
constexpr int reach_within = 64, reach_between = 2;

// Times of the ranks of one node. Empty if the machine was too slow or too busy, or had too little memory, to get as far as
// a table must reach. earlier: of earlier measurements, the same on all ranks; a method that they show to be far behind is
// timed again only if a brief look shows that it is not.
std::vector<CallTimes> times_within_node(const Communicator& node, const Budget& budget,
                                         const std::vector<CallTimes>& earlier);
// `cost` with latency and bandwidth as they are between the first ranks of the first two nodes.
LinkCost between_nodes(const Communicator& world, LinkCost cost);
// Times of ranks on several nodes, whose network has that bandwidth (LinkCost::beta). Empty if they neither get as far as 12
// KiB nor have a call that `earlier` lacks. A method that earlier measurements show to be far behind is not timed again.
std::vector<CallTimes> times_between_nodes(const Communicator& world, const Selector& selector, double beta,
                                           const Budget& budget, const std::vector<CallTimes>& earlier);

}  // namespace stretto
