// Tests on a GPU; without one, each is skipped with the reason.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "stretto/device.hpp"
#include "stretto/stream.hpp"

namespace {

class WatchesGpu final : public testing::EmptyTestEventListener {
  void OnTestStart(const testing::TestInfo& /*test*/) override {
    if (const std::string obstacle = stretto::cuda_obstacle(); !obstacle.empty()) GTEST_SKIP() << obstacle;
    // Keeps one stream, and with it the GPU's clock, alive for all tests; otherwise each call of a kernel would make a new
    // clock.
    static const auto& keeps_clock = *new stretto::Stream("clock", stretto::Priority::normal, stretto::Device::cuda);
    static_cast<void>(keeps_clock);
  }

  // A kernel's error stays in the process and would fail all later tests: the caller continues in a new process.
  void OnTestEnd(const testing::TestInfo& test) override {
    if (!test.result()->Failed()) return;
    const cudaError_t error = cudaStreamQuery(cudaStreamPerThread);
    if (error == cudaSuccess || error == cudaErrorNotReady) return;
    std::printf("The GPU cannot be used any more in this process: %s.\n", cudaGetErrorString(error));
    std::fflush(stdout);
    std::_Exit(3);
  }
};

}  // namespace

int main(int count, char** arguments) {
  testing::InitGoogleTest(&count, arguments);
  testing::UnitTest::GetInstance()->listeners().Append(new WatchesGpu);
  return RUN_ALL_TESTS();
}
