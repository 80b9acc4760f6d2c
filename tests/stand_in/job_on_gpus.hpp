#pragma once
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <vector>

#include "stand_in/host_gpu.hpp"
#include "stand_in/host_nccl.hpp"
#include "stretto/device.hpp"
#include "stretto/launch.hpp"

namespace stretto {

// Jobs whose ranks are threads on stand-ins for GPUs: they share one, where messages are copies, or have one each, where
// they are the stand-in's for NCCL.
class JobOnGpus {
 public:
  explicit JobOnGpus(bool one_gpu_each, const HostGpuOptions& options = {.longest_delay_us = 20})
      : one_gpu_each_(one_gpu_each), options_(options) {}

  // body: each rank's, on its GPU. No rule may be broken, but where streams do not wait for each other.
  void run(int size, const std::function<void(const Communicator&)>& body) const {
    std::vector<std::unique_ptr<HostGpu>> gpus;
    std::vector<HostGpu*> all;
    for (int i = 0; i < (one_gpu_each_ ? size : 1); ++i) {
      all.push_back(gpus.emplace_back(std::make_unique<HostGpu>(options_)).get());
    }
    HostNccl nccl(all);
    use_nccl(&nccl);
    run_threads(size, [&](const Communicator& world) {
      use_gpu_in_this_thread(gpus[one_gpu_each_ ? static_cast<std::size_t>(world.rank()) : 0].get());
      try {
        const OnDevice on_gpu(Device::cuda);
        body(world);
      } catch (...) {
        use_gpu_in_this_thread(nullptr);
        throw;
      }
      use_gpu_in_this_thread(nullptr);
    });
    use_nccl(nullptr);
    if (options_.ignores_waits) return;
    EXPECT_THAT(nccl.violations(), testing::IsEmpty());
    for (const auto& gpu : gpus) EXPECT_THAT(gpu->violations(), testing::IsEmpty());
  }

 private:
  bool one_gpu_each_;
  HostGpuOptions options_;
};

}  // namespace stretto
