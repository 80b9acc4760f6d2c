#pragma once
#include "planning/step/step_simulation.hpp"
#include "planning/step/step_units.hpp"

namespace stretto {

struct LoweredStep {
  StepSchedule schedule;
  std::vector<StepTask> tasks;  // the input of simulate_step()
};
// Makes the schedule that the knobs describe, and predicts its time. `costs` is reused, and the caller has checked the
// graph. The list of collectives is made only if `described`. Throws Error(invalid_argument) for groups that do not fit the
// nodes, forms that a collective does not have, more gathers ahead than may be live, or a wrong number of bucket flags.
LoweredStep lower_step(const StepGraph& graph, CollectiveCosts& costs, const StepKnobs& knobs, double slowdown,
                       bool described = true);

// The schedule's list of collectives. rooms[gather]: the computation after which memory for the gather is free.
std::vector<ScheduledCollective> scheduled_collectives(const StepUnits& units, CollectiveCosts& costs,
                                                       const std::map<int, int>& rooms);

}  // namespace stretto
