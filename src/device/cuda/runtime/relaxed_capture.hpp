#pragma once
#include <cuda_runtime.h>

namespace stretto {

// During its life, this thread may make calls that the capture of a graph forbids by default, such as allocations: libraries
// make them at their first use, and they must not become part of the graph.
class RelaxedCapture {
 public:
  // If CUDA has failed, the exchange fails, too, and the next call reports why.
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
