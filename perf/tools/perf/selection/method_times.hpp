#pragma once
#include <vector>

#include "perf/buffers.hpp"
#include "stretto/planning/calibration.hpp"

namespace perf {

// The measured times of one collective at one size, and the library's choice.
struct SizeTimes : stretto::CallTimes {
  stretto::Method chosen;
};

// Times f32 sums (and moves of f32) from 8 bytes to most_bytes by a factor, in buffers of `memory`, by every method that
// the library may choose there, and by its choice. Collective. From 1 MiB on, where bytes decide, a method that takes over
// 3 times as long as the fastest is not timed at larger sizes.
std::vector<SizeTimes> time_methods(const stretto::Communicator& world, stretto::Collective collective, Memory memory,
                                    std::int64_t most_bytes, int factor);

// The medians of several runs, for the methods that all of them have timed. The placement of memory and threads differs from
// run to run, and changes times by a fifth and more.
std::vector<SizeTimes> median_of(const std::vector<std::vector<SizeTimes>>& runs);

}  // namespace perf
