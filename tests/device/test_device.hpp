#pragma once
#include "stretto/stream.hpp"

namespace stretto {

// The device that a test program tests. Programs are made of the same tests once for the host, where a stand-in takes the
// place of a GPU, and once for a real GPU (those with the label gpu): these have on_a_gpu.cpp in them.
inline constinit Device tested_device = Device::cpu;
inline Device test_device() { return tested_device; }
inline bool on_real_gpu() { return test_device() == Device::cuda; }

// Where a call costs much, a choice of cases will do: on a GPU, to and from which all its memory is copied, and on the
// stand-in that runs kernels' source (simt_tests).
inline bool calls_are_slow() { return test_device() == Device::cuda; }

}  // namespace stretto
