#pragma once
#include <vector>

#include "collectives/calibration/sweep.hpp"
#include "collectives/selection/select.hpp"
#include "stretto/device.hpp"
#include "stretto/planning/calibration.hpp"

// The measurements that a job makes at its start. All ranks of the node, or of the job, call them together and get the same
// results.
namespace stretto {

// A table covers calls of up to this many times the largest measured size; the cost model covers larger calls. The
// factor within a node is large, because the model is least accurate for vectors that exceed the caches, and a measurement
// may end at 2 MiB.
constexpr int reach_within = 64, reach_between = 2;

// Whether other programs took these cores for so long that times say little: ranks wait for one another if there are more
// of them than cores, but no longer than that. `sum`: over all ranks of a host, of a time in which they were never idle.
bool others_ran(const CoreTime& sum, double ranks_per_core);

// Times of the ranks of one node. Empty unless the measurement reached 256 KiB, since the costs of the model are fitted to
// these times and small messages do not show the cost of a byte; and empty if others_ran() meanwhile.
std::vector<CallTimes> times_within_node(const Communicator& node, const Budget& budget);
// Returns `cost` with the latency and the bandwidth between the first ranks of the first two nodes.
LinkCost between_nodes(const Communicator& world, LinkCost cost);
// Times of ranks on several nodes. beta: of the network, as LinkCost has it. Empty if no call was reached.
std::vector<CallTimes> times_between_nodes(const Communicator& world, const Selector& selector, double beta,
                                           const Budget& budget);

}  // namespace stretto
