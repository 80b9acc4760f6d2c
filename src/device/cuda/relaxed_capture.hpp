#pragma once
#include "device/cuda/cuda_check.hpp"

namespace stretto {

// While it lives, this thread may do what a capture of a graph forbids by default, such as allocating: libraries do when
// they are first used, and no part of it belongs into the graph.
class RelaxedCapture {
 public:
  RelaxedCapture() { check_cuda(cudaThreadExchangeStreamCaptureMode(&mode_), "set the mode of capture"); }
  ~RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

}  // namespace stretto
