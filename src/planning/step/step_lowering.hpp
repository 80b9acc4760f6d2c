#pragma once
#include "planning/step/step_units.hpp"

namespace stretto {

// Like schedule_step(), but for many schedules of one graph: `costs` is reused, the caller has checked the graph, and the
// list of collectives is made only if `described`.
StepSchedule lower_step(const StepGraph& graph, CollectiveCosts& costs, const StepKnobs& knobs, double slowdown,
                        bool described = true);

// The schedule's list of collectives. rooms[gather]: the computation after which memory for the gather is free.
std::vector<ScheduledCollective> scheduled_collectives(const StepUnits& units, CollectiveCosts& costs,
                                                       const std::map<int, int>& rooms);

}  // namespace stretto
