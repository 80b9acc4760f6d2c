#pragma once
#include <array>

#include "device/cuda/launch.cuh"

// Any number of arrays as one argument of a kernel.
namespace stretto::gpu_code {

struct Pointers {
  static constexpr int room = 32;
  const void* const* many;  // in GPU memory, if there are more than `room`
  const void* few[room];

  __device__ const void* operator[](int i) const {
    const void* const array = many != nullptr ? many[i] : few[i];
#ifdef __CUDA_ARCH__
    __builtin_assume(__isGlobal(array));
#endif
    return array;
  }
};

static __global__ void store_pointers(const Pointers from, int count, const void** to) {
  if (static_cast<int>(threadIdx.x) < count) to[threadIdx.x] = from.few[threadIdx.x];
}

// Keeps the pointers in GPU memory until kernels that are launched during this object's life are done. Pointers get there as
// arguments of kernels, never by a copy from host memory: a graph would read that memory at each launch.
class PointersFor {
 public:
  PointersFor(const void* const* arrays, int count, GpuStream stream)
      : memory_(count > Pointers::room ? static_cast<std::size_t>(count) * sizeof(void*) : 0, stream) {
    if (count <= Pointers::room) {
      std::copy(arrays, arrays + count, pointers_.few);
      return;
    }
    const void** const to = memory_.as<const void*>();
    for (int first = 0; first < count; first += Pointers::room) {
      const int some = std::min(Pointers::room, count - first);
      Pointers part = {};
      std::copy(arrays + first, arrays + first + some, part.few);
      launch("hand over pointers", store_pointers, 1, Pointers::room, stream, part, some, to + first);
    }
    pointers_.many = to;
  }
  const Pointers& get() const { return pointers_; }

 private:
  Pointers pointers_ = {};
  Scratch memory_;
};

}  // namespace stretto::gpu_code
