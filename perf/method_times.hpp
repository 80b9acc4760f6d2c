#pragma once
#include <vector>

#include "cases.hpp"
#include "stretto/communicator.hpp"
#include "stretto/tuning.hpp"

namespace perf {

// One collective at one size by one method, as it was measured.
struct MethodTime {
  stretto::Method method;
  double seconds = 0;
};
struct SizeTimes {
  stretto::Collective collective = stretto::Collective::all_reduce;
  int ranks = 1;
  std::int64_t bytes = 0;  // of the whole vector
  stretto::PlanRequest request;
  std::vector<MethodTime> methods;
  stretto::Method chosen;  // by the library

  double of(const stretto::Method& method) const;  // infinite where it was not timed
  const MethodTime& fastest() const;
};

// Times f32 sums (and moves of f32) from 8 bytes to most_bytes by a factor, every method of the collective in turn, several
// times over; medians. All ranks call it; the result is rank 0's.
std::vector<SizeTimes> time_methods(const stretto::Communicator& world, stretto::Collective collective,
                                    std::int64_t most_bytes, int factor);

// Where memory and threads come to lie differs from run to run and changes times by a fifth and more: the medians of
// several.
std::vector<SizeTimes> median_of(const std::vector<std::vector<SizeTimes>>& runs);

// The collectives that have a choice.
const std::vector<stretto::Collective>& chosen_collectives();

}  // namespace perf
