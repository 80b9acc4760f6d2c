#pragma once
#include <optional>
#include <string>

#include "perf/overlap/overlap_case.hpp"

namespace perf {

// The planner's prediction for a case on links of the measured rate: the time of the step as it runs, and the planner's own
// schedule. The same on every rank.
struct Prediction {
  double seconds = 0;
  stretto::StepSchedule best;
};
// Collective. Measures the case's computation without communication, and its communication without computation. Empty if the
// planner has no graph of the case.
std::optional<Prediction> predict(const stretto::Communicator& world, OverlapCase& overlap_case, double bytes_per_step);

}  // namespace perf
