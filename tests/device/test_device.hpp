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

// Whether the device is the stand-in that runs kernels' source (simt_tests), where each call costs: a choice of cases will
// do.
#if defined(STRETTO_TEST_EMULATED)
constexpr bool is_emulated() { return true; }
#else
constexpr bool is_emulated() { return false; }
#endif

}  // namespace stretto
