#pragma once
#include <vector>

#include "stretto/overlap/schedule.hpp"

namespace stretto {

// Consecutive stages whose ranks share cores. If more of them compute at a time than `at_a_time`, each goes on the slower:
// the system gives all the same part of the cores' time.
struct StagesOnCores {
  int stages = 1;
  double at_a_time = 1;  // may be less than 1
};

// Returns the seconds from the first computation to the last of all stages, as simulate() does for stages that have cores of
// their own. A message is on its way while its sender goes on. `of_parts` has the times of each part of the model. The
// schedule is one that check() accepts. Cost: O(actions x stages).
double seconds_on_shared_cores(const Schedule& schedule, const std::vector<ScheduleTimes>& of_parts,
                               const StagesOnCores& sharing);

}  // namespace stretto
