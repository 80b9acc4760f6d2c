#pragma once
#include <vector>

#include "perf/buffers.hpp"
#include "perf/cases.hpp"
#include "stretto/communicator.hpp"
#include "stretto/tuning.hpp"

namespace perf {

// The measured time of one collective at one size by one method.
struct MethodTime {
  stretto::Method method;
  double seconds = 0;
};
struct SizeTimes {
  stretto::Collective collective = stretto::Collective::all_reduce;
  int ranks = 1;
  std::int64_t bytes = 0;  // size of the whole vector
  stretto::PlanRequest request;
  std::vector<MethodTime> methods;
  stretto::Method chosen;  // the library's choice

  double of(const stretto::Method& method) const;  // infinite if it was not timed
  const MethodTime& fastest() const;
};

// Times f32 sums (and moves of f32) from 8 bytes to most_bytes by a factor, in buffers of that memory, by every method that
// the library may choose there. Collective; the result is valid at rank 0.
//
// Each size begins with a short measurement of every method. Methods that take over 1.5 times as long as the fastest keep
// that time. The others, and the library's choice, are timed again for 10 ms and at least 3 operations. From 1 MiB on, where
// bytes decide, a method that takes over 3 times as long as the fastest is not timed at larger sizes.
std::vector<SizeTimes> time_methods(const stretto::Communicator& world, stretto::Collective collective, Memory memory,
                                    std::int64_t most_bytes, int factor);

// The medians of several runs, for the methods that all of them have timed. The placement of memory and threads differs from
// run to run, and changes times by a fifth and more.
std::vector<SizeTimes> median_of(const std::vector<std::vector<SizeTimes>>& runs);

// The collectives that have a choice.
const std::vector<stretto::Collective>& chosen_collectives();

}  // namespace perf
