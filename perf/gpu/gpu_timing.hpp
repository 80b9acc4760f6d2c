#pragma once
#include <algorithm>
#include <functional>
#include <vector>

#include "stretto/device.hpp"

namespace perf {

inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Seconds of one call by the clock of this thread's device: what it puts into computation(), over so many calls as last a
// few milliseconds. The median of several such batches. Calls get their number, so that they can take turns with their
// buffers.
inline double device_seconds(const std::function<void(int call)>& call) {
  constexpr double batch_seconds = 5e-3;
  constexpr int batches = 9;
  int number = 0;
  const auto batch = [&](int calls) {
    call(number++);  // keeps the device busy until what is timed has been put behind it
    const stretto::Work work = stretto::computation().enqueue([&] {
      for (int i = 0; i < calls; ++i) call(number++);
    });
    work.wait();
    return (work.times().done - work.times().started) / calls;
  };
  batch(3);  // what is made at the first call is made now
  const int calls = static_cast<int>(std::clamp(batch_seconds / batch(3), 2.0, 500.0));
  std::vector<double> seconds;
  for (int i = 0; i < batches; ++i) seconds.push_back(batch(calls));
  return median(seconds);
}

}  // namespace perf
