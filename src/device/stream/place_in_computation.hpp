#pragma once
#include "stretto/device.hpp"
#include "stretto/stream.hpp"

namespace stretto {

// Marks a place in computation(), whose time can be asked for later.
inline Work place_in_computation() {
  return computation().enqueue([] {});
}
// Blocks until the Work is done, and returns when that was, in seconds of now_seconds().
inline double done_at(const Work& work) {
  work.wait();
  return work.times().done;
}

}  // namespace stretto
