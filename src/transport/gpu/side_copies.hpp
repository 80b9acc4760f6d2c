#pragma once
#include <cstddef>
#include <vector>

#include "device/gpu.hpp"

namespace stretto {

// Copies in streams of their own, beside all others. Used by one thread at a time.
class SideCopies {
 public:
  explicit SideCopies(Gpu& gpu);
  ~SideCopies();  // no copy may be awaited any more
  SideCopies(const SideCopies&) = delete;
  SideCopies& operator=(const SideCopies&) = delete;

  // Begin a copy of a sent, or of a received, block, and return the event of its end. They wait for nothing on the GPU, nor
  // for copies of the other kind.
  GpuEvent out(std::byte* to, const std::byte* from, std::size_t bytes) { return copy(to, from, bytes, out_); }
  GpuEvent in(std::byte* to, const std::byte* from, std::size_t bytes) { return copy(to, from, bytes, in_); }
  bool is_done(GpuEvent copied);  // if it returns true, the event is gone
  void wait(GpuEvent copied);     // the event is gone then; returns at once if the GPU has failed, which copies nothing more

 private:
  GpuEvent copy(std::byte* to, const std::byte* from, std::size_t bytes, GpuStream stream);

  Gpu& gpu_;
  GpuStream out_, in_;
  std::vector<GpuEvent> events_, free_events_;
};

}  // namespace stretto
