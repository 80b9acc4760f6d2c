#pragma once
#include <gmock/gmock.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "../variables.hpp"
#include "device/test_device.hpp"
#include "stand_in/host_gpu.hpp"
#include "stand_in/host_nccl.hpp"
#include "stretto/device.hpp"
#include "stretto/stretto.hpp"

namespace stretto {

// Ranks that are threads, with their GPUs: all share one, or each has its own, where they communicate by NCCL. These are
// stand-ins; in a test of a real GPU it is the process's one, which NCCL gives to one rank only.
class GpuRanks {
 public:
  explicit GpuRanks(bool one_gpu_each, int longest_delay_us = 20)
      : one_gpu_each_(one_gpu_each), longest_delay_us_(longest_delay_us) {}

  int most() const { return on_real_gpu() && one_gpu_each_ ? 1 : 8; }  // ranks
  // Why they cannot run here; empty: they can.
  std::string obstacle() const {
    return on_real_gpu() && one_gpu_each_ && nccl() == nullptr ? "This build has no NCCL." : "";
  }

  // The body's thread computes on its GPU.
  void run(int size, const std::function<void(const Communicator&)>& body) {
    if (on_real_gpu()) return run_on_real_gpu(size, body);
    std::vector<std::unique_ptr<HostGpu>> gpus;
    std::vector<HostGpu*> all;
    for (int i = 0; i < (one_gpu_each_ ? size : 1); ++i) {
      all.push_back(gpus.emplace_back(std::make_unique<HostGpu>(HostGpuOptions{.longest_delay_us = longest_delay_us_})).get());
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
  int longest_delay_us_;
};

}  // namespace stretto
