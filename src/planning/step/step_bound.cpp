// The lower bound of a step's time, whatever its schedule.
#include <algorithm>

#include "planning/step/step_units.hpp"

namespace stretto {

double step_bound(const StepGraph& graph, const StepCluster& cluster) {
  const LinkModel& links = cluster.links;
  double computing = 0, inside = 0, between = 0;
  for (const StepNode& node : graph.nodes) {
    if (!node.collective) {
      int ranks = 1;
      for (const StepDependency& each : node.after) {
        const StepNode& other = graph.nodes[each.node];
        if (node.elementwise && is_bucketed(other)) ranks = std::max(ranks, other.collective->group.size);
      }
      computing += node.seconds / ranks;
      continue;
    }
    const StepCollective& own = *node.collective;
    const GroupPlacement place = GroupPlacement::of(own.group, cluster);
    if (place.ranks == 1) continue;
    // A scatter or a gather moves the vector once round the group; broadcast and reduce forward it at least once.
    const auto bytes = [&](DType dtype) { return static_cast<double>(own.elements) * static_cast<double>(size_of(dtype)); };
    double moved = bytes(own.dtype);
    if (own.kind == Collective::all_reduce) moved += std::min(bytes(own.gathers_as.value_or(own.dtype)), bytes(own.dtype));
    const LinkLevel& near = links.levels.front();
    const auto share = [](int parts) { return static_cast<double>(parts - 1) / parts; };
    if (place.nodes() == 1) {
      inside += moved * share(place.ranks) / (near.bandwidth_gbs * 1e9);
      continue;
    }
    std::size_t outer = 0;
    while (outer + 1 < links.levels.size() && links.levels[outer].ranks < cluster.ranks) ++outer;
    // A group has at most one port for each of its ranks on a node, and the groups of a node share the node's ports.
    const double ports = std::min<double>(place.on_node, static_cast<double>(near.ports) / place.groups);
    between += moved * share(place.nodes()) / (links.levels[outer].bandwidth_gbs * 1e9 * ports);
  }
  return std::max({computing, inside, between});
}

}  // namespace stretto
