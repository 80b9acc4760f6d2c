#pragma once
#include <gmock/gmock.h>

#include <optional>

#include "device/test_device.hpp"
#include "stand_in/host_gpu.hpp"

namespace stretto {

// The GPU on which a test runs: this machine's, or a stand-in. A test must not violate the stand-in's rules, and must free
// all of its memory.
class OnTestedGpu : public testing::Test {
 protected:
  OnTestedGpu() {
    if (on_real_gpu()) return;
    stand_in_.emplace(HostGpuOptions{.longest_delay_us = 300});
    in_use_.emplace(*stand_in_);
  }
  void TearDown() override {
    if (!stand_in_) return;
    EXPECT_THAT(stand_in_->violations(), testing::IsEmpty());
    EXPECT_EQ(stand_in_->bytes_in_use(), 0U);
    EXPECT_EQ(stand_in_->streams_in_use(), 0U);
    EXPECT_EQ(stand_in_->events_in_use(), 0U);
  }

 private:
  std::optional<HostGpu> stand_in_;
  std::optional<GpuInUse> in_use_;
};

}  // namespace stretto
