#pragma once
#include <memory>

#include "device/gpu.hpp"

namespace stretto {

// Tells on the clock of now_seconds() when a GPU came to an event: one for all streams of a GPU, so that what lies between
// two of them is as exact as CUDA tells it (half a microsecond in the first seconds of the clock, less exactly later: CUDA
// gives milliseconds of 24 bits).
class GpuClock {
 public:
  // While anybody has it, all get the same.
  static std::shared_ptr<GpuClock> of(Gpu& gpu);

  explicit GpuClock(Gpu& gpu);
  ~GpuClock();
  GpuClock(const GpuClock&) = delete;
  GpuClock& operator=(const GpuClock&) = delete;

  double seconds_at(GpuEvent event) const { return seconds_ + gpu_.seconds_between(begin_, event); }

 private:
  Gpu& gpu_;
  GpuEvent begin_;  // reached at this time of the host's clock
  double seconds_ = 0;
};

}  // namespace stretto
