#pragma once
#include <cstddef>
#include <mutex>
#include <vector>

#include "device/gpu.hpp"

namespace stretto {

// Memory of a GPU that one rank lends its peers, which open it by its handle and close it at any time. Memory must not be
// released while a peer may have it open (CUDA leaves that undefined): so memory that a communicator gives back is kept for
// the next communicator, and released when all ranks have left the job. Several threads may use it at the same time.
class GpuExports {
 public:
  GpuExports() = default;
  ~GpuExports();
  GpuExports(const GpuExports&) = delete;
  GpuExports& operator=(const GpuExports&) = delete;

  // Lends at least this many bytes to one borrower. The GPU must outlive this object.
  GpuSharedMemory take(Gpu& gpu, std::size_t bytes);
  // Only for memory from which no peer copies any more.
  void give_back(const std::byte* memory);
  void release(const std::byte* memory);  // for memory that no peer has open

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
