#pragma once
#include "overlap/planner/step_units.hpp"

namespace stretto {

// schedule_step() for who makes many schedules: costs remembers, the graph was checked, and the list of collectives is made
// only where it is wanted.
StepSchedule lower_step(const StepGraph& graph, CollectiveCosts& costs, const StepKnobs& knobs, double slowdown,
                        bool described = true);

// That list. rooms: by gather, the computation after which there is room for it.
std::vector<ScheduledCollective> scheduled_collectives(const StepUnits& units, CollectiveCosts& costs,
                                                       const std::map<int, int>& rooms);

}  // namespace stretto
