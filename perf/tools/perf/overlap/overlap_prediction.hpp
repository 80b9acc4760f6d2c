#pragma once
#include <optional>
#include <string>

#include "perf/overlap/overlap_case.hpp"

namespace perf {

// What the planner says of a case on links that carry so many bytes a second: how long its step takes as it is; and what it
// would do, the same on every rank.
struct Prediction {
  double seconds = 0;
  stretto::StepSchedule best;
};
// Collective: measures what the case computes, without communication, and how fast it communicates, without computation.
// Nothing where the planner has no graph of the case.
std::optional<Prediction> predict(const stretto::Communicator& world, OverlapCase& what, double bytes_per_step);

}  // namespace perf
