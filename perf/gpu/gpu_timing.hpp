#pragma once
#include <algorithm>
#include <functional>
#include <vector>

#include "apps/common/median.hpp"
#include "stretto/device.hpp"

namespace perf {

using apps::median;

// Seconds of one call of work that it enqueues in computation(), by the clock of this thread's device: the median of several
// batches of calls that last a few milliseconds. Each call gets its number, so that sets of buffers can take turns.
inline double device_seconds(const std::function<void(int call)>& call) {
  constexpr double batch_seconds = 5e-3;
  constexpr int batches = 9;
  int number = 0;
  const auto batch = [&](int calls) {
    call(number++);  // keeps the device busy until the timed calls have been enqueued
    const stretto::Work work = stretto::computation().enqueue([&] {
      for (int i = 0; i < calls; ++i) call(number++);
    });
    work.wait();
    return (work.times().done - work.times().started) / calls;
  };
  batch(3);  // first calls allocate and initialise
  const int calls = static_cast<int>(std::clamp(batch_seconds / batch(3), 2.0, 500.0));
  std::vector<double> seconds;
  for (int i = 0; i < batches; ++i) seconds.push_back(batch(calls));
  return median(seconds);
}

}  // namespace perf
