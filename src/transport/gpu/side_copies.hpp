#pragma once
#include <cstddef>
#include <vector>

#include "device/gpu.hpp"

namespace stretto {

// Copies beside all other streams. One thread at a time.
class SideCopies {
 public:
  explicit SideCopies(Gpu& gpu);
  ~SideCopies();  // nobody waits for a copy any more
  SideCopies(const SideCopies&) = delete;
  SideCopies& operator=(const SideCopies&) = delete;

  // Begin a copy of what is sent, or of what was received, and give what tells its end. They wait for nothing on the GPU,
  // nor for those of the other kind.
  GpuEvent out(std::byte* to, const std::byte* from, std::size_t bytes) { return copy(to, from, bytes, out_); }
  GpuEvent in(std::byte* to, const std::byte* from, std::size_t bytes) { return copy(to, from, bytes, in_); }
  bool is_done(GpuEvent copied);  // the event is gone when it is
  void wait(GpuEvent copied);     // and is gone; a GPU that has failed copies nothing more

 private:
  GpuEvent copy(std::byte* to, const std::byte* from, std::size_t bytes, GpuStream stream);

  Gpu& gpu_;
  GpuStream out_, in_;
  std::vector<GpuEvent> events_, free_events_;
};

}  // namespace stretto
