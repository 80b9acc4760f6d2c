#pragma once
#include "device/cuda/runtime/cuda_check.hpp"
#include "device/gpu.hpp"

namespace stretto {

// Memory that kernels of one stream use between its making and its end: handed back in the stream's order, so that nobody
// waits and a graph may hold it. Of no bytes: null.
class StreamMemory {
 public:
  StreamMemory(std::size_t bytes, GpuStream stream)
      : data_(bytes == 0 ? nullptr : gpu().allocate(bytes, stream)), stream_(stream) {}
  ~StreamMemory() {
    if (data_ != nullptr) cudaFreeAsync(data_, cuda(stream_));  // what fails here has failed where it was used
  }
  StreamMemory(const StreamMemory&) = delete;
  StreamMemory& operator=(const StreamMemory&) = delete;

  void* data() const { return data_; }

 private:
  std::byte* data_;
  GpuStream stream_;
};

}  // namespace stretto
