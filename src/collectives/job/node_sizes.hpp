#pragma once
#include <vector>

#include "transport/network.hpp"

namespace stretto {

// The node of each of these ranks of the job, numbered by first appearance.
std::vector<int> numbered_nodes(const Network& network, const std::vector<int>& job_ranks);

// How the members of a group lie on nodes and in pods, as plans take it; nothing where they do not come node by node.
struct NodeSizes {
  int ranks_per_node = 0;
  std::vector<int> uneven;  // each node's members, where they differ
  int nodes_per_pod = 0;    // 0 where pods differ, or there are none
};
NodeSizes node_sizes(const Network& network, const std::vector<int>& job_ranks, int job_size);

}  // namespace stretto
