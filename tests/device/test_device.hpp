#pragma once
#include "stretto/stream.hpp"

namespace stretto {

// The device that a test program tests. The same tests are built into programs for the host, where a stand-in takes the
// place of a GPU, and into programs for a real GPU (label gpu), which contain on_a_gpu.cpp.
inline constinit Device tested_device = Device::cpu;
inline Device test_device() { return tested_device; }
inline bool on_real_gpu() { return test_device() == Device::cuda; }

// Whether tests should try fewer cases because calls are slow: on a GPU, to and from which each call copies all of its
// memory, and on the stand-in that runs the kernels' CUDA source (simt_tests).
inline bool calls_are_slow() { return test_device() == Device::cuda; }

}  // namespace stretto
