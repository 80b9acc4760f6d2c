#pragma once
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "device/test_device.hpp"
#include "stand_in/host_gpu.hpp"
#include "stand_in/host_nccl.hpp"
#include "stretto/device.hpp"
#include "stretto/launch.hpp"
#include "variables.hpp"

namespace stretto {

// Jobs whose ranks are threads on GPUs: they share one, where messages are copies, or have one each, where they are NCCL's.
// GPUs and NCCL are stand-ins; in a test of a real GPU they are this process's one, which NCCL gives to one rank only.
class JobOnGpus {
 public:
  explicit JobOnGpus(bool one_gpu_each, const HostGpuOptions& options = {.longest_delay_us = 20})
      : one_gpu_each_(one_gpu_each), options_(options) {}

  int most_ranks() const { return on_real_gpu() && one_gpu_each_ ? 1 : 8; }
  // Why there is no such job here; empty: there is.
  std::string obstacle() const {
    return on_real_gpu() && one_gpu_each_ && nccl() == nullptr ? "This build has no NCCL." : "";
  }

  // body: each rank's, on its GPU. No rule may be broken, but where streams do not wait for each other.
  void run(int size, const std::function<void(const Communicator&)>& body) const {
    if (on_real_gpu()) return run_on_real_gpu(size, body);
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
  void run_on_real_gpu(int size, const std::function<void(const Communicator&)>& body) const {
    const Variable route("STRETTO_GPU_TRANSPORT", one_gpu_each_ ? "nccl" : "copies");
    run_threads(size, [&](const Communicator& world) {
      const OnDevice on_gpu(Device::cuda);
      body(world);
    });
  }

  bool one_gpu_each_;
  HostGpuOptions options_;
};

}  // namespace stretto
