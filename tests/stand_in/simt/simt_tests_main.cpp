// simt_tests: the kernels' tests over the kernels' source in CUDA, without a GPU.
#include "stand_in/simt/cuda_words.hpp"
//
#include <gmock/gmock.h>

#include "device/cuda/cuda_kernels.hpp"

int main(int count, char** arguments) {
  testing::InitGoogleMock(&count, arguments);
  stretto::HostGpu gpu({}, std::make_unique<stretto::SimtKernels>());
  const stretto::GpuInUse in_use(gpu);
  return RUN_ALL_TESTS();
}
