#pragma once
#include "overlap/collective_costs.hpp"

namespace stretto {

// schedule_step() for who makes many schedules: costs remembers, the graph was checked, and the list of collectives is made
// only where it is wanted.
StepSchedule lower_step(const StepGraph& graph, CollectiveCosts& costs, const StepKnobs& knobs, double slowdown,
                        bool described = true);

// By node whether its gradient's update can be done by shares: all that waits for it updates element by element.
bool can_be_postponed(const StepGraph& graph, int gradient);

inline bool is_bucketed(const StepNode& node) {
  return node.collective && node.collective->traffic == Traffic::gradient && node.collective->kind == Collective::all_reduce;
}

}  // namespace stretto
