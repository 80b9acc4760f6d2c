#include "transport/staging.hpp"

#include <exception>

namespace stretto {

// What waits for others is put into other streams: these are to be served beside them.
Staging::Staging(Gpu& gpu)
    : gpu_(gpu), out_(gpu.create_stream(Priority::urgent)), in_(gpu.create_stream(Priority::urgent)) {}

Staging::~Staging() {
  for (const GpuEvent event : events_) gpu_.destroy(event);
  for (std::byte* const block : blocks_) gpu_.release_pinned(block);
  gpu_.destroy(out_);
  gpu_.destroy(in_);
}

std::byte* Staging::take_block() {
  if (free_blocks_.empty()) {
    std::byte* const block = gpu_.allocate_pinned(block_bytes);
    blocks_.push_back(block);
    return block;
  }
  std::byte* const block = free_blocks_.back();
  free_blocks_.pop_back();
  return block;
}

void Staging::give_back(std::byte* block) { free_blocks_.push_back(block); }

GpuEvent Staging::copy(std::byte* to, const std::byte* from, std::size_t bytes, GpuStream stream) {
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

bool Staging::is_done(GpuEvent copied) {
  if (!gpu_.reached(copied)) return false;
  free_events_.push_back(copied);
  return true;
}

void Staging::wait(GpuEvent copied) {
  try {
    gpu_.synchronize(copied);
  } catch (const std::exception&) {
  }
  free_events_.push_back(copied);
}

}  // namespace stretto
