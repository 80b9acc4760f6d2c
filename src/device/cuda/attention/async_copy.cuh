#pragma once
#include <cuda_runtime.h>

// Copies from a GPU's memory to that of a block, which need no registers while they are on their way. A thread reads what it
// has copied itself without a barrier; copies are waited for in lots.
namespace stretto::gpu_code {

// 16 bytes, of both at their alignment.
__device__ inline void begin_copy(uint4* to, const void* from) {
#ifdef __CUDA_ARCH__
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"l"(__cvta_generic_to_shared(to)), "l"(from) : "memory");
#else
  *to = *static_cast<const uint4*>(from);
#endif
}

__device__ inline void end_lot_of_copies() {
#ifdef __CUDA_ARCH__
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// For all lots of this thread but the last few; a lot may be empty.
template <int last>
__device__ inline void wait_for_lots_but() {
#ifdef __CUDA_ARCH__
  asm volatile("cp.async.wait_group %0;" ::"n"(last) : "memory");
#endif
}

// Has a line of 128 bytes come as far as the L2 cache.
__device__ inline void prefetch_line([[maybe_unused]] const void* from) {
#ifdef __CUDA_ARCH__
  asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
#endif
}

}  // namespace stretto::gpu_code
