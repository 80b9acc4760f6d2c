#pragma once
#include <cstddef>
#include <vector>

#include "device/gpu.hpp"

namespace stretto {

// Pinned memory and streams of one thread that copies between a GPU and the host. It must be made in that thread.
class Staging {
 public:
  // Several are under way at a time: this is what a link between hosts and a copy engine need to be busy.
  static constexpr std::size_t block_bytes = std::size_t{512} << 10;

  explicit Staging(Gpu& gpu);
  ~Staging();  // nobody has a block or a copy any more
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  std::byte* take_block();
  void give_back(std::byte* block);

  // Begin a copy, and give what tells its end. These copies wait for nothing on the GPU.
  GpuEvent copy_out(std::byte* block, const std::byte* from, std::size_t bytes) { return copy(block, from, bytes, out_); }
  GpuEvent copy_in(std::byte* to, const std::byte* block, std::size_t bytes) { return copy(to, block, bytes, in_); }
  bool is_done(GpuEvent copied);  // the event is gone when it is
  void wait(GpuEvent copied);     // and is gone; a GPU that has failed copies nothing more

 private:
  GpuEvent copy(std::byte* to, const std::byte* from, std::size_t bytes, GpuStream stream);

  Gpu& gpu_;
  GpuStream out_, in_;
  std::vector<std::byte*> blocks_, free_blocks_;
  std::vector<GpuEvent> events_, free_events_;
};

}  // namespace stretto
