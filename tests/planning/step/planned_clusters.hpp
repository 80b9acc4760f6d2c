#pragma once
#include <fmt/format.h>

#include "planning/step/step_lowering.hpp"

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

// One kind of link between all ranks. Local work takes almost no time.
inline StepCluster simple_cluster(int ranks, double alpha_seconds, double bytes_per_second) {
  LinkLevel level;
  level.name = "link";
  level.alpha_us = alpha_seconds * 1e6;
  level.bandwidth_gbs = bytes_per_second * 1e-9;
  return {{{level}, 1e12}, ranks};
}

// The schedule that the knobs describe, without a search.
inline StepSchedule schedule_step(const StepGraph& graph, const StepCluster& cluster, const StepKnobs& knobs,
                                  double slowdown = 0) {
  CollectiveCosts costs(cluster);
  return lower_step(graph, costs, knobs, slowdown).schedule;
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
