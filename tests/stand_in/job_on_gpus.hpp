#pragma once
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "device/test_device.hpp"
#include "stand_in/host_gpu.hpp"
#include "stand_in/host_nccl.hpp"
#include "stretto/device.hpp"
#include "stretto/launch.hpp"
#include "support/variables.hpp"

namespace stretto {

// The route of messages between the ranks' GPUs. With nccl each rank has its own GPU, otherwise all share one.
enum class Route { copies, nccl, ipc, staged };
constexpr Route all_routes[] = {Route::copies, Route::nccl, Route::ipc, Route::staged};
inline const char* name(Route route) {
  switch (route) {
    case Route::copies: return "copies";
    case Route::nccl: return "nccl";
    case Route::ipc: return "ipc";
    case Route::staged: return "staged";
  }
  return "unknown";
}

// The reason why this machine's GPU cannot share memory with other processes, as inside some containers; empty if it can.
inline std::string obstacle_to_ipc() {
  try {
    gpu().release_shared(gpu().allocate_shared(1).memory);
    return "";
  } catch (const std::exception& error) {
    return error.what();
  }
}

// Jobs whose ranks are threads on GPUs. GPUs and NCCL are stand-ins, except in tests on a real GPU: there all ranks share
// this process's GPU, on which NCCL accepts a single rank.
class JobOnGpus {
 public:
  explicit JobOnGpus(Route route, const HostGpuOptions& options = {.longest_delay_us = 20})
      : route_(route), options_(options), transport_("STRETTO_GPU_TRANSPORT", asked_for(route)) {}

  int most_ranks() const { return on_real_gpu() && route_ == Route::nccl ? 1 : 8; }
  // The reason why such a job cannot run here; empty if it can.
  std::string obstacle() const {
    if (!on_real_gpu()) return "";
    if (route_ == Route::ipc) return obstacle_to_ipc();
    return route_ == Route::nccl && nccl() == nullptr ? "This build has no NCCL." : "";
  }

  // Runs the body on each rank, on its GPU, and expects no violations, unless ignores_waits. Throws like run_threads().
  void run(
      int size, const std::function<void(const Communicator&)>& body,
      const std::function<void(HostNccl&)>& set_up = [](HostNccl&) {}, double nccl_timeout = 5) const {
    if (on_real_gpu()) return run_ranks(size, {}, body);
    std::vector<std::unique_ptr<HostGpu>> gpus;
    std::vector<HostGpu*> all;
    for (int i = 0; i < (route_ == Route::nccl ? size : 1); ++i) {
      all.push_back(gpus.emplace_back(std::make_unique<HostGpu>(options_)).get());
    }
    HostNccl nccl(all, nccl_timeout);
    set_up(nccl);
    use_nccl(&nccl);
    std::exception_ptr error;
    try {
      run_ranks(size, gpus, body);
    } catch (...) {
      error = std::current_exception();
    }
    use_nccl(nullptr);
    if (!options_.ignores_waits) {
      EXPECT_THAT(nccl.violations(), testing::IsEmpty());
      for (const auto& gpu : gpus) EXPECT_THAT(gpu->violations(), testing::IsEmpty());
    }
    if (error) std::rethrow_exception(error);
  }

 private:
  // On stand-ins "auto" finds copies and NCCL by itself: it chooses NCCL when each rank has its own GPU.
  static const char* asked_for(Route route) {
    return route == Route::staged || route == Route::ipc || on_real_gpu() ? name(route) : "auto";
  }
  // gpus: empty for this machine's GPU.
  static void run_ranks(int size, const std::vector<std::unique_ptr<HostGpu>>& gpus,
                        const std::function<void(const Communicator&)>& body) {
    run_threads(size, [&](const Communicator& world) {
      if (!gpus.empty()) use_gpu_in_this_thread(gpus[static_cast<std::size_t>(world.rank()) % gpus.size()].get());
      try {
        const OnDevice on_gpu(Device::cuda);
        body(world);
      } catch (...) {
        use_gpu_in_this_thread(nullptr);
        throw;
      }
      use_gpu_in_this_thread(nullptr);
    });
  }

  Route route_;
  HostGpuOptions options_;
  Variable transport_;
};

}  // namespace stretto
