#pragma once
#include "device/cuda/runtime/cuda_check.hpp"
#include "device/gpu.hpp"

namespace stretto {

// Memory for kernels of one stream that are launched between the constructor and the destructor. It is released in stream
// order, so that nobody waits, and works in graphs. null if bytes is 0.
class StreamMemory {
 public:
  StreamMemory(std::size_t bytes, GpuStream stream)
      : data_(bytes == 0 ? nullptr : gpu().allocate(bytes, stream)), stream_(stream) {}
  ~StreamMemory() {
    if (data_ != nullptr) cudaFreeAsync(data_, cuda(stream_));  // an error here has been reported where the memory was used
  }
  StreamMemory(const StreamMemory&) = delete;
  StreamMemory& operator=(const StreamMemory&) = delete;

  void* data() const { return data_; }

 private:
  std::byte* data_;
  GpuStream stream_;
};

}  // namespace stretto
