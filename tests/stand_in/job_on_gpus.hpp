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
#include "variables.hpp"

namespace stretto {

// How the ranks' messages go between their GPUs; by NCCL each rank has one of its own, else they share one.
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

// Why this machine's GPU lends its memory to no other process, as inside some containers; empty: it does.
inline std::string obstacle_to_ipc() {
  try {
    gpu().release_shared(gpu().allocate_shared(1).memory);
    return "";
  } catch (const std::exception& error) {
    return error.what();
  }
}

// Jobs whose ranks are threads on GPUs. GPUs and NCCL are stand-ins; in a test of a real GPU they are this process's one,
// which NCCL gives to one rank only.
class JobOnGpus {
 public:
  explicit JobOnGpus(Route route, const HostGpuOptions& options = {.longest_delay_us = 20})
      : route_(route), options_(options), transport_("STRETTO_GPU_TRANSPORT", asked_for(route)) {}

  int most_ranks() const { return on_real_gpu() && route_ == Route::nccl ? 1 : 8; }
  // Why there is no such job here; empty: there is.
  std::string obstacle() const {
    if (!on_real_gpu()) return "";
    if (route_ == Route::ipc) return obstacle_to_ipc();
    return route_ == Route::nccl && nccl() == nullptr ? "This build has no NCCL." : "";
  }

  // body: each rank's, on its GPU. No rule may be broken, but where streams do not wait for each other. Throws what
  // run_threads() does.
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
  // A stand-in finds its way by itself: one GPU each is NCCL's affair.
  static const char* asked_for(Route route) {
    return route == Route::staged || route == Route::ipc || on_real_gpu() ? name(route) : "auto";
  }
  // No GPUs: this machine's.
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
