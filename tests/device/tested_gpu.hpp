#pragma once
#include <gmock/gmock.h>

#include <optional>

#include "device/test_device.hpp"
#include "stand_in/on_host_gpu.hpp"

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
    if (stand_in_) expect_clean(*stand_in_);
  }

 private:
  std::optional<HostGpu> stand_in_;
  std::optional<GpuInUse> in_use_;
};

}  // namespace stretto
