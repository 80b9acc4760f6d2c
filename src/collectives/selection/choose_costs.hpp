#pragma once
#include <algorithm>

#include "stretto/error.hpp"
#include "stretto/planning/tuning.hpp"

namespace stretto {

// The type in which elements travel: narrow floats as they are if they are rounded only once, or not at all; otherwise f32.
DType wire_of(Collective collective, Algorithm algorithm, DType dtype, ReduceOp op);

// The cost model's knowledge of the routes between a request's ranks.
struct KnownCosts {
  const RouteCost& inside;
  const RouteCost& between;  // if all ranks are on one node, the same as inside
  int ports;                 // of a node

  static KnownCosts of(const PlanRequest& request, const Tuning& tuning, const Circumstances& circumstances) {
    const RouteCost& inside = tuning.nearest(circumstances.route_inside, request.size, circumstances.ranks_per_core);
    const RouteCost& between = circumstances.several_nodes
                                   ? tuning.nearest(circumstances.route_between, request.size, circumstances.ranks_per_core)
                                   : inside;
    // Shared memory has no ports; between hosts a node has one, since a file of costs does not tell their number.
    return {inside, between, circumstances.route_between == "shm" ? request.size : 1};
  }
  double seconds_of(const PlanRequest& request, DType wire) const {
    return seconds(request, inside.cost, between.cost, static_cast<double>(size_of(wire)), ports);
  }
};

// The time of a collective that the links between GPUs perform as one operation: one launch and its latency, and the bytes
// that a ring sends, whatever the number of rounds inside.
double whole_collective_seconds(const PlanRequest& request, const LinkCost& link, DType dtype);

// Whether the request's method exists: not every algorithm can be a part of one with levels, and not every one can quantize.
inline bool can_be_done(const PlanRequest& request) {
  try {
    cost_by_level(request);
    return true;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::invalid_argument) throw;
    return false;
  }
}

inline void sort_by_seconds(std::vector<Candidate>& candidates) {
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& a, const Candidate& b) { return a.seconds < b.seconds; });
}

// choose() for requests that are to be quantized (choose_quantized.cpp).
Choice choose_quantized(const PlanRequest& request, DType dtype, ReduceOp op, const Tuning& tuning,
                        const Circumstances& circumstances, bool may_be_plain);

}  // namespace stretto
