// gpu_tests: the kernels' tests on a GPU; where there is none, each is skipped with the reason.
#include <gtest/gtest.h>

#include "stretto/device.hpp"

namespace {

class SkipWithoutGpu final : public testing::EmptyTestEventListener {
  void OnTestStart(const testing::TestInfo& /*test*/) override {
    if (const std::string obstacle = stretto::cuda_obstacle(); !obstacle.empty()) GTEST_SKIP() << obstacle;
  }
};

}  // namespace

int main(int count, char** arguments) {
  testing::InitGoogleTest(&count, arguments);
  testing::UnitTest::GetInstance()->listeners().Append(new SkipWithoutGpu);
  return RUN_ALL_TESTS();
}
