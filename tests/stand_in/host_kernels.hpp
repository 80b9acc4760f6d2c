#pragma once
#include "device/gpu_kernels.hpp"

namespace stretto {

class HostGpu;

// The host's kernels, called in stream order by the stream's thread. Like a launch, a call copies numbers, arrays of
// pointers and options; it does not keep tensors alive.
class HostKernels final : public GpuKernels {
 public:
  explicit HostKernels(HostGpu& gpu) : gpu_(gpu) {}

#define STRETTO_GPU_KERNEL(name, ...) void name(__VA_ARGS__, GpuStream stream) override
#include "device/gpu_kernel_list.hpp"
#undef STRETTO_GPU_KERNEL

 private:
  // Puts call(argument, ...) into the stream; tensors are passed as host tensors of the same memory.
  template <class Call, class... Arguments>
  void put(const char* kernel, GpuStream stream, Call call, const Arguments&... arguments);
  void require_memory(const char* kernel, const void* first, std::size_t bytes);

  HostGpu& gpu_;
};

}  // namespace stretto
