#pragma once
#include "device/stream/ticks.hpp"
#include "stretto/device.hpp"
#include "stretto/stream.hpp"

namespace stretto {

// Marks a place in computation(), whose time can be asked for later. Allocates nothing where that is the calling thread.
inline Work place_in_computation() {
  if (!computation().is_inline()) return computation().enqueue([] {});
  Work place;
  const std::uint64_t now = ticks();
  place.was_done(now, now);
  return place;
}
// Blocks until the Work is done, and returns when that was, in seconds of now_seconds().
inline double done_at(const Work& work) {
  work.wait();
  return work.times().done;
}

}  // namespace stretto
