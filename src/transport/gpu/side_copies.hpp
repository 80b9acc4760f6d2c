#pragma once
#include <cstddef>
#include <vector>

#include "device/gpu.hpp"

namespace stretto {

// Copies in streams of their own, which run beside all other streams. Used by one thread at a time.
class SideCopies {
 public:
  explicit SideCopies(Gpu& gpu);
  ~SideCopies();  // no copy may be awaited any more
  SideCopies(const SideCopies&) = delete;
  SideCopies& operator=(const SideCopies&) = delete;

  // Begin the copy of a block, out() of one to send and in() of a received one, and return an event that marks its end. A
  // copy waits for nothing on the GPU, nor for copies of the other kind.
  GpuEvent out(std::byte* to, const std::byte* from, std::size_t bytes) { return copy(to, from, bytes, out_); }
  GpuEvent in(std::byte* to, const std::byte* from, std::size_t bytes) { return copy(to, from, bytes, in_); }
  bool is_done(GpuEvent copied);  // returns true if done; the event then no longer exists
  void wait(GpuEvent copied);     // also ends the event; returns at once if the GPU has failed, since no copy then goes on

 private:
  GpuEvent copy(std::byte* to, const std::byte* from, std::size_t bytes, GpuStream stream);

  Gpu& gpu_;
  GpuStream out_, in_;
  std::vector<GpuEvent> events_, free_events_;
};

}  // namespace stretto
