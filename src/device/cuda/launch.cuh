#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "device/cuda/runtime/cuda_check.hpp"

// Launching kernels into a stream, and scratch memory for them.
namespace stretto::gpu_code {

template <class... Parameters, class... Arguments>
cudaError_t try_launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, std::size_t shared_bytes, cudaStream_t stream,
                       Arguments&&... arguments) {
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...);
}

template <class... Parameters, class... Arguments>
void launch(const char* what, void (*kernel)(Parameters...), dim3 grid, dim3 block, GpuStream stream,
            Arguments&&... arguments) {
  check_cuda(try_launch(kernel, grid, block, 0, cuda(stream), std::forward<Arguments>(arguments)...), what);
}

inline int multiprocessors() {
  int device = 0;
  int count = 0;
  check_cuda(cudaGetDevice(&device), "tell which GPU it uses");
  check_cuda(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device), "describe the GPU");
  return count;
}

constexpr std::int64_t divided_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// The number of blocks for `pieces` pieces of work; each block takes pieces in strides of the grid.
inline unsigned blocks_for(std::int64_t pieces, int blocks_per_multiprocessor) {
  const std::int64_t most = std::int64_t{multiprocessors()} * blocks_per_multiprocessor;
  return static_cast<unsigned>(std::clamp<std::int64_t>(pieces, 1, most));
}

// Memory that kernels may use from the place of the constructor in the stream to the place of the destructor; works in
// graphs, too.
class Scratch {
 public:
  Scratch(std::size_t bytes, GpuStream stream) : stream_(stream) {
    if (bytes > 0) check_cuda(cudaMallocAsync(&memory_, bytes, cuda(stream)), "find memory for a kernel");
  }
  ~Scratch() {
    if (memory_ != nullptr) cudaFreeAsync(memory_, cuda(stream_));
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  template <class T>
  T* as() const {
    return static_cast<T*>(memory_);
  }

 private:
  void* memory_ = nullptr;
  GpuStream stream_;
};

}  // namespace stretto::gpu_code
