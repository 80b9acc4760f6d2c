#pragma once
#include <cuda_runtime.h>

// Copies from global memory to shared memory that need no registers while in flight. A thread may read data that it has
// copied itself without a barrier. Copies are waited for in groups ("lots").
namespace stretto::gpu_code {

// Copies 16 bytes; both addresses must be multiples of 16.
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

// Waits for all lots of this thread except the last `last`; a lot may be empty.
template <int last>
__device__ inline void wait_for_lots_but() {
#ifdef __CUDA_ARCH__
  asm volatile("cp.async.wait_group %0;" ::"n"(last) : "memory");
#endif
}

// Prefetches a line of 128 bytes into the L2 cache.
__device__ inline void prefetch_line([[maybe_unused]] const void* from) {
#ifdef __CUDA_ARCH__
  asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
#endif
}

}  // namespace stretto::gpu_code
