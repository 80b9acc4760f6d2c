#pragma once
#include <fmt/format.h>

#include "stretto/planning/planner.hpp"

namespace stretto {

// Nodes of ranks_per_node ranks: 200 GB/s inside a node, ports of 25 GB/s between nodes.
inline StepCluster cluster_of(int ranks, int ranks_per_node, int ports = 1) {
  return {
      link_model_from_text(fmt::format(
          R"({{"levels": [{{"name": "node", "ranks": {}, "alpha_us": 1, "overhead_us": 0.2, "bandwidth_gbs": 200, "ports": {}}},
                              {{"name": "network", "alpha_us": 5, "overhead_us": 0.5, "bandwidth_gbs": 25, "own_ports": true}}], "local_gbs": 2000}})",
          ranks_per_node, ports)),
      ranks};
}

inline TransformerStep transformer(int layers, StepGroup data, StepGroup tensor = {}) {
  TransformerStep step;
  step.layers.assign(layers, {2e-3, 4e-3, 0.3e-3});
  step.parameters.assign(layers, 12 << 20);
  step.data = data;
  step.tensor = tensor;
  step.activations = 4 << 20;
  return step;
}

}  // namespace stretto
