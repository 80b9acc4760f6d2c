#pragma once
#include "stretto/planning/step_graph.hpp"

namespace stretto {

// The layer tier: the nodes in program order, but inside a layer's forward or backward, computations that feed communicated
// activations come first, and computations that only gradients wait for run while the activations travel: dgrad before
// wgrad.
std::vector<int> layer_order(const StepGraph& graph);

}  // namespace stretto
