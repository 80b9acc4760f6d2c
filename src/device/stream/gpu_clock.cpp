#include "device/stream/gpu_clock.hpp"

#include <map>
#include <mutex>
#include <utility>

namespace stretto {

std::shared_ptr<GpuClock> GpuClock::of(Gpu& gpu) {
  static auto& mutex = *new std::mutex;  // never destroyed: streams in static storage may be destroyed in any order
  static auto& clocks = *new std::map<Gpu*, std::weak_ptr<GpuClock>>;
  const std::lock_guard lock(mutex);
  std::weak_ptr<GpuClock>& known = clocks[&gpu];
  std::shared_ptr<GpuClock> clock = known.lock();
  if (!clock) known = clock = std::make_shared<GpuClock>(gpu);
  return clock;
}

// The GPU reaches the event between two readings of the host clock; of several tries, the closest pair is the most exact.
GpuClock::GpuClock(Gpu& gpu) : gpu_(gpu), begin_(gpu.create_event()) {
  constexpr int looks = 8;
  const GpuStream stream = gpu.create_stream(Priority::urgent);
  GpuEvent other = gpu.create_event();
  double closest = 0;
  for (int look = 0; look < looks; ++look) {
    const double from = now_seconds();
    gpu.record(other, stream);
    gpu.synchronize(other);
    const double apart = now_seconds() - from;
    if (look > 0 && apart >= closest) continue;
    closest = apart;
    seconds_ = from + apart / 2;
    std::swap(begin_, other);
  }
  gpu.destroy(other);
  gpu.destroy(stream);
}

GpuClock::~GpuClock() { gpu_.destroy(begin_); }

}  // namespace stretto
