#pragma once
#include <vector>

#include "transport/network.hpp"

namespace stretto {

// The node of each of these ranks of the job; nodes are numbered by first appearance.
std::vector<int> numbered_nodes(const Network& network, const std::vector<int>& job_ranks);

// The placement of a communicator's members on nodes and in pods, in the form that plans take. All zero and empty if the
// members do not come node by node.
struct NodeSizes {
  int ranks_per_node = 0;   // 0 if nodes differ
  std::vector<int> uneven;  // if nodes differ: the number of members on each
  int nodes_per_pod = 0;    // 0 if pods differ, or there are none
};
NodeSizes node_sizes(const Network& network, const std::vector<int>& job_ranks, int job_size);

}  // namespace stretto
