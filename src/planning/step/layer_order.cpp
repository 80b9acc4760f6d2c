#include "planning/step/layer_order.hpp"

#include <algorithm>

namespace stretto {
namespace {

bool is_activation(const StepNode& node) { return node.collective && node.collective->payload == Payload::activation; }

// By node: true if activations that are communicated in the same step wait for its result.
std::vector<bool> feeds_activations(const StepGraph& graph) {
  std::vector<bool> feeds(graph.nodes.size(), false);
  for (std::size_t i = graph.nodes.size(); i-- > 0;) {
    const StepNode& node = graph.nodes[i];
    if (node.collective ? !is_activation(node) : !feeds[i]) continue;
    for (const StepDependency& each : node.after) {
      if (each.steps_back == 0) feeds[each.node] = true;
    }
  }
  return feeds;
}

}  // namespace

std::vector<int> layer_order(const StepGraph& graph) {
  const std::vector<bool> feeds = feeds_activations(graph);
  std::vector<int> order, fillers;
  const auto fill = [&] {
    order.insert(order.end(), fillers.begin(), fillers.end());
    fillers.clear();
  };
  for (int i = 0; i < static_cast<int>(graph.nodes.size()); ++i) {
    const StepNode& node = graph.nodes[i];
    if (i > 0 && (node.layer != graph.nodes[i - 1].layer || node.phase != graph.nodes[i - 1].phase)) fill();
    const bool waits_long = node.collective ? node.collective->payload == Payload::gradient : !feeds[i];
    if (waits_long) {
      fillers.push_back(i);
      continue;
    }
    // A computation that waits for activations leaves time for the fillers; a node that waits for a filler cannot precede
    // it.
    for (const StepDependency& each : node.after) {
      const bool leaves_time = !node.collective && is_activation(graph.nodes[each.node]);
      if (each.steps_back == 0 && (leaves_time || std::find(fillers.begin(), fillers.end(), each.node) != fillers.end()))
        fill();
    }
    order.push_back(i);
  }
  fill();
  return order;
}

}  // namespace stretto
