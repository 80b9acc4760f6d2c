// simt_tests: the kernels' tests over the kernels' CUDA source, without a GPU.
#include "stand_in/simt/cuda_words.hpp"
//
#include <gmock/gmock.h>

#include "device/cuda/cuda_kernels.hpp"

namespace {

// Fails a test for errors that it did not query: failures of its last kernels, and violations by destructors.
class NothingIsLost final : public testing::EmptyTestEventListener {
 public:
  explicit NothingIsLost(stretto::HostGpu& gpu) : gpu_(gpu) {}

 private:
  void OnTestEnd(const testing::TestInfo& /*test*/) override {
    EXPECT_THAT(gpu_.violations(), testing::IsEmpty());
    EXPECT_EQ(gpu_.failure(), "");
  }
  stretto::HostGpu& gpu_;
};

}  // namespace

int main(int count, char** arguments) {
  testing::InitGoogleMock(&count, arguments);
  stretto::HostGpu gpu({}, std::make_unique<stretto::SimtKernels>());
  const stretto::GpuInUse in_use(gpu);
  // Appended after the printer: at the end of a test the last listener runs first, so its failures count for the test.
  testing::UnitTest::GetInstance()->listeners().Append(new NothingIsLost(gpu));
  return RUN_ALL_TESTS();
}
