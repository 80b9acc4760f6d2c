#pragma once
#include "device/stream/stream_queue.hpp"

namespace stretto {

// Whether the Work stands for an operation that a rehearsal has left out: no data has moved.
inline bool was_skipped(const Work& work) { return work.state() && work.state()->skipped; }

}  // namespace stretto
