#pragma once
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "interop/nccl/libraries/cuda_calls.hpp"
#include "interop/nccl/libraries/real_nccl.hpp"
#include "stand_in/host_gpu.hpp"
#include "stand_in/host_nccl.hpp"

// What stands behind the door in its tests: NCCL's functions and CUDA's over the stand-ins of threads and host memory. A
// program's cudaStream_t is the stand-in's stream there.
namespace stretto {

inline cudaStream_t cuda_stream(GpuStream stream) { return reinterpret_cast<cudaStream_t>(stream); }

// While it lives, it is NCCL, and CUDA, for the door and for Stretto itself. Like NCCL it refuses ranks that share a GPU.
class BehindTheDoor {
 public:
  BehindTheDoor(int ranks, int gpus, const HostGpuOptions& options = {.longest_delay_us = 20});
  ~BehindTheDoor();
  BehindTheDoor(const BehindTheDoor&) = delete;
  BehindTheDoor& operator=(const BehindTheDoor&) = delete;

  // Each rank in a thread, with its GPU. What a body throws is a failure of the test.
  void run(const std::function<void(int rank)>& body);
  HostGpu& gpu_of(int rank) { return *gpus_[static_cast<std::size_t>(rank) % gpus_.size()]; }

  int calls(const std::string& function) const;  // that came to NCCL
  int communicators() const;                     // that NCCL has made and not ended

 private:
  int ranks_;
  std::vector<std::unique_ptr<HostGpu>> gpus_;
  std::unique_ptr<HostNccl> nccl_;
  std::unique_ptr<nccl_door::CudaCalls> cuda_;
  nccl_door::RealNccl table_;
};

}  // namespace stretto
