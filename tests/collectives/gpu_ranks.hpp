#pragma once
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <exception>
#include <functional>
#include <memory>
#include <vector>

#include "oracle.hpp"
#include "stand_in/host_gpu.hpp"
#include "stand_in/host_nccl.hpp"
#include "stretto/device.hpp"
#include "stretto/stretto.hpp"
#include "variables.hpp"

// Ranks as threads whose buffers lie on stand-ins for GPUs.
namespace stretto {

// How the ranks' messages go between their GPUs; by NCCL each rank has one of its own, else they share one.
enum class Route { copies, nccl, staged };
inline const char* name(Route route) { return route == Route::copies ? "copies" : route == Route::nccl ? "nccl" : "staged"; }

class GpuRanks {
 public:
  explicit GpuRanks(Route route, const HostGpuOptions& options = {.longest_delay_us = 20})
      : route_(route), options_(options), transport_("STRETTO_GPU_TRANSPORT", route == Route::staged ? "staged" : "auto") {}

  // Throws what run_threads() does.
  void run(
      int size, const std::function<void(const Communicator&)>& body,
      const std::function<void(HostNccl&)>& set_up = [](HostNccl&) {}, double nccl_timeout = 5) {
    const bool one_gpu_each = route_ == Route::nccl;
    std::vector<std::unique_ptr<HostGpu>> gpus;
    std::vector<HostGpu*> all;
    for (int i = 0; i < (one_gpu_each ? size : 1); ++i) {
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
    EXPECT_THAT(nccl.violations(), testing::IsEmpty());
    for (const auto& gpu : gpus) EXPECT_THAT(gpu->violations(), testing::IsEmpty());
    if (error) std::rethrow_exception(error);
  }

 private:
  static void run_ranks(int size, const std::vector<std::unique_ptr<HostGpu>>& gpus,
                        const std::function<void(const Communicator&)>& body) {
    run_threads(size, [&](const Communicator& world) {
      use_gpu_in_this_thread(gpus[static_cast<std::size_t>(world.rank()) % gpus.size()].get());
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

// A problem's buffers in a GPU's memory.
class GpuBuffers {
 public:
  GpuBuffers(const oracle::Problem& problem, int rank, bool in_place)
      : here_(problem, rank, in_place), there_({static_cast<std::int64_t>(here_.memory().size())}, DType::u8, Device::cuda) {
    there_.copy_from_host(here_.memory().data());
  }
  Call call() const {
    Call call = here_.call_in(static_cast<std::byte*>(there_.raw()));
    call.keep_alive = there_;
    return call;
  }
  std::string fault() {
    there_.copy_to_host(here_.memory().data());
    return here_.fault();
  }

 private:
  oracle::Buffers here_;
  Tensor there_;
};

}  // namespace stretto
