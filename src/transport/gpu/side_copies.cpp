#include "transport/gpu/side_copies.hpp"

#include <exception>

namespace stretto {

// The streams are urgent, because the thread that waits for a copy has nothing else to do.
SideCopies::SideCopies(Gpu& gpu)
    : gpu_(gpu), out_(gpu.create_stream(Priority::urgent)), in_(gpu.create_stream(Priority::urgent)) {}

SideCopies::~SideCopies() {
  for (const GpuEvent event : events_) gpu_.destroy(event);
  gpu_.destroy(out_);
  gpu_.destroy(in_);
}

GpuEvent SideCopies::copy(std::byte* to, const std::byte* from, std::size_t bytes, GpuStream stream) {
  if (free_events_.empty()) {
    events_.push_back(gpu_.create_event());
    free_events_.push_back(events_.back());
  }
  gpu_.copy(to, from, bytes, stream);
  const GpuEvent copied = free_events_.back();
  gpu_.record(copied, stream);
  free_events_.pop_back();
  return copied;
}

bool SideCopies::is_done(GpuEvent copied) {
  if (!gpu_.reached(copied)) return false;
  free_events_.push_back(copied);
  return true;
}

void SideCopies::wait(GpuEvent copied) {
  try {
    gpu_.synchronize(copied);
  } catch (const std::exception&) {
  }
  free_events_.push_back(copied);
}

}  // namespace stretto
