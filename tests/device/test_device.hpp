#pragma once
#include "stretto/stream.hpp"

// The device that a test program tests. Programs are made of the same files once for the host, where a stand-in takes the
// place of a GPU, and once for a real GPU (those with the label gpu).
#if !defined(STRETTO_TEST_DEVICE)
#define STRETTO_TEST_DEVICE cpu
#endif

namespace stretto {

constexpr Device test_device() { return Device::STRETTO_TEST_DEVICE; }
constexpr bool on_real_gpu() { return test_device() == Device::cuda; }

// Where a call costs much, a choice of cases will do: on a GPU, to and from which all its memory is copied, and on the stand-in
// that runs kernels' source (simt_tests).
constexpr bool calls_are_dear() { return test_device() == Device::cuda; }

}  // namespace stretto
