#pragma once
#include <cstddef>
#include <mutex>
#include <vector>

#include "device/gpu.hpp"

namespace stretto {

// Memory of a GPU that one rank lends its peers, who open it by its handle and close it when they like. So it is never
// released while any of them may have it open (to CUDA that is undefined): what a communicator has given back is kept for
// the next one, and all goes in the end, when the job has been left by everybody. Safe from any thread.
class GpuExports {
 public:
  GpuExports() = default;
  ~GpuExports();
  GpuExports(const GpuExports&) = delete;
  GpuExports& operator=(const GpuExports&) = delete;

  // At least so many bytes, of nobody else. The GPU is there for longer than this.
  GpuSharedMemory take(Gpu& gpu, std::size_t bytes);
  // Nobody copies from it any more. What may still be copied from is not given back.
  void give_back(const std::byte* memory);
  void release(const std::byte* memory);  // nobody has it open, either

 private:
  struct Region {
    Gpu* gpu;
    GpuSharedMemory shared;
    std::size_t bytes;
    bool is_free;
  };
  std::vector<Region>::iterator find(const std::byte* memory);

  std::mutex mutex_;
  std::vector<Region> regions_;
};

}  // namespace stretto
