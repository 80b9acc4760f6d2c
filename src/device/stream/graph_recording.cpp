#include "device/stream/graph_recording.hpp"

#include "device/memory/memory.hpp"

namespace stretto {

GraphMemory::GraphMemory(Gpu& gpu) : gpu_(gpu), stream_(gpu.create_stream(Priority::normal)) {}

// The graph is launched no more, and every launch has ended: each kept the graph until then.
GraphMemory::~GraphMemory() {
  for (std::byte* const block : blocks_) gpu_.release(block, stream_);
  for (const auto& [block, stream] : taken_over_) gpu_.release(block, stream.get());
  gpu_.destroy(stream_);
}

std::shared_ptr<std::byte> GraphMemory::allocate(std::size_t bytes, GpuStream user) {
  const Kind kind{user, bytes};
  const std::lock_guard lock(mutex_);
  std::byte* block = nullptr;
  if (const auto found = unused_.find(kind); found != unused_.end()) {
    block = found->second;
    unused_.erase(found);
  } else {
    block = gpu_.allocate(bytes, stream_);
    blocks_.push_back(block);
  }
  return {block, [self = shared_from_this(), kind](std::byte* gone) { self->give_back(gone, kind); }};
}

void GraphMemory::give_back(std::byte* block, Kind kind) {
  const std::lock_guard lock(mutex_);
  unused_.emplace(kind, block);
}

void GraphMemory::take_over(std::byte* block, std::shared_ptr<GpuStreamHandle> stream) {
  const std::lock_guard lock(mutex_);
  taken_over_.emplace_back(block, std::move(stream));
}

void GraphMemory::wait_until_allocated() {
  const GpuEvent here = gpu_.create_event();
  gpu_.record(here, stream_);
  gpu_.synchronize(here);
  gpu_.destroy(here);
}

}  // namespace stretto
