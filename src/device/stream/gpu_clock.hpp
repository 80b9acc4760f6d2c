#pragma once
#include <memory>

#include "device/gpu.hpp"

namespace stretto {

// The times, on the clock of now_seconds(), at which a GPU reached its events. All streams of a GPU share one GpuClock, so
// that the time between events of two streams is as exact as CUDA's: half a microsecond in the first seconds of the clock,
// and less exact later, since CUDA returns milliseconds as an f32 with 24 significant bits.
class GpuClock {
 public:
  // Callers get the same object as long as one of them holds it.
  static std::shared_ptr<GpuClock> of(Gpu& gpu);

  explicit GpuClock(Gpu& gpu);
  ~GpuClock();
  GpuClock(const GpuClock&) = delete;
  GpuClock& operator=(const GpuClock&) = delete;

  double seconds_at(GpuEvent event) const { return seconds_ + gpu_.seconds_between(begin_, event); }

 private:
  Gpu& gpu_;
  GpuEvent begin_;  // reached at seconds_ on the host's clock
  double seconds_ = 0;
};

}  // namespace stretto
