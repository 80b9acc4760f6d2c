#pragma once
#include "stretto/overlap/step_graph.hpp"

namespace stretto {

// The layer tier: the nodes in program order, but that inside a layer's forward or backward what activations on their way
// wait for is computed first, and what only gradients wait for is computed while those are under way: dgrad before wgrad.
std::vector<int> layer_order(const StepGraph& graph);

}  // namespace stretto
