#pragma once
#include <vector>

#include "perf/buffers.hpp"
#include "perf/cases.hpp"
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

// Times f32 sums (and moves of f32) from 8 bytes to most_bytes by a factor, in buffers of that memory, by every method that
// the library may choose there. All ranks call it; the result is rank 0's.
//
// Each size begins with a short look at every method. What takes over 1.5 times as long as the fastest keeps the time of
// that look; the others, and what the library would choose, are timed again for 10 ms and 3 operations at least. From 1 MiB
// on, where bytes decide, what takes over 3 times as long as the fastest is not looked at for larger sizes.
std::vector<SizeTimes> time_methods(const stretto::Communicator& world, stretto::Collective collective, Memory memory,
                                    std::int64_t most_bytes, int factor);

// Where memory and threads come to lie differs from run to run and changes times by a fifth and more: the medians of
// several, of the methods that all of them have timed.
std::vector<SizeTimes> median_of(const std::vector<std::vector<SizeTimes>>& runs);

// The collectives that have a choice.
const std::vector<stretto::Collective>& chosen_collectives();

}  // namespace perf
