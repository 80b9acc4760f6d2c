#pragma once
#include <gmock/gmock.h>

#include "stand_in/host_gpu.hpp"

namespace stretto {

// No rule has been broken, and nothing is left on the GPU.
inline void expect_clean(const HostGpu& gpu) {
  EXPECT_THAT(gpu.violations(), testing::IsEmpty());
  EXPECT_EQ(gpu.bytes_in_use(), 0U);
  EXPECT_EQ(gpu.streams_in_use(), 0U);
  EXPECT_EQ(gpu.events_in_use(), 0U);
}

// A test on a stand-in GPU of its own, which it leaves clean.
template <class Test = testing::Test>
class OnHostGpu : public Test {
 protected:
  HostGpu gpu{{.longest_delay_us = 200}};
  GpuInUse in_use{gpu};

  void TearDown() override { expect_clean(gpu); }
};

}  // namespace stretto
