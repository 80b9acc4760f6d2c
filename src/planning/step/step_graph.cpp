#include "stretto/planning/step_graph.hpp"

#include <cmath>

#include "core/fail.hpp"
#include "planning/step/step_units.hpp"

namespace stretto {

const char* name(Phase phase) {
  switch (phase) {
    case Phase::forward: return "forward";
    case Phase::backward: return "backward";
    default: return "update";
  }
}

const char* name(Payload payload) {
  switch (payload) {
    case Payload::activation: return "activations";
    case Payload::parameter: return "parameters";
    default: return "gradients";
  }
}

int StepGraph::add(StepNode node) {
  nodes.push_back(std::move(node));
  return static_cast<int>(nodes.size()) - 1;
}

namespace {

void check_collective(const StepNode& node) {
  const StepCollective& collective = *node.collective;
  require(
      collective.kind < Collective::barrier && collective.kind != Collective::gather &&
          collective.kind != Collective::scatter,
      "Node {} is a {}; steps are planned with all_reduce, reduce_scatter, all_gather, all_to_all, broadcast and reduce.",
      node.name, name(collective.kind));
  require(collective.elements > 0, "Node {} communicates {} elements; give at least one.", node.name, collective.elements);
  require(collective.group.size >= 1 && collective.group.stride >= 1,
          "Node {} communicates over a group of {} ranks that are {} apart; both are at least 1.", node.name,
          collective.group.size, collective.group.stride);
}

}  // namespace

void check(const StepGraph& graph) {
  require(graph.most_live_gathers >= 1, "{} gathers may be live at a time; at least one has to.", graph.most_live_gathers);
  const int count = static_cast<int>(graph.nodes.size());
  for (int i = 0; i < count; ++i) {
    const StepNode& node = graph.nodes[i];
    require(std::isfinite(node.seconds) && node.seconds >= 0 && std::isfinite(node.chunk_seconds) && node.chunk_seconds >= 0,
            "Node {} computes for {} seconds, {} a chunk; give what is not negative.", node.name, node.seconds,
            node.chunk_seconds);
    for (const StepDependency& each : node.after) {
      require(each.node >= 0 && each.node < count && (each.steps_back == 0 || each.steps_back == 1),
              "Node {} waits for node {} of {} steps before; there are {} nodes, of this step (0) and the one before (1).",
              node.name, each.node, each.steps_back, count);
      require(each.steps_back == 1 || each.node < i,
              "Node {} waits for node {} ({}), which comes after it; give nodes in program order.", node.name, each.node,
              graph.nodes[each.node].name);
    }
    if (node.collective) check_collective(node);
  }
}

}  // namespace stretto
