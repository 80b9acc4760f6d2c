#pragma once
#include <cuda_runtime.h>

namespace stretto {

// While it lives, this thread may do what a capture of a graph forbids by default, such as allocating: libraries do when
// they are first used, and no part of it belongs into the graph.
class RelaxedCapture {
 public:
  // Where CUDA can do nothing any more, what follows will say why.
  RelaxedCapture() : exchanged_(cudaThreadExchangeStreamCaptureMode(&mode_) == cudaSuccess) {}
  ~RelaxedCapture() {
    if (exchanged_) cudaThreadExchangeStreamCaptureMode(&mode_);
  }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
  bool exchanged_;
};

}  // namespace stretto
