#pragma once
#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>

// CUDA's variables for the running thread. The host's compiler does not define them.
extern constinit thread_local uint3 threadIdx, blockIdx;
extern constinit thread_local dim3 blockDim, gridDim;

// A stand-in for a GPU's multiprocessor. The threads of a block are fibers of one thread of the host, so that kernels run as
// their source says. Blocks, and the threads of each, take turns in a different order at every launch, so that a missing
// barrier, or a block that depends on another, gives wrong results. A thread keeps its turn until it waits or ends, so lost
// updates of a word by two threads do not show.
namespace stretto::simt {

// Calls `thread` for every thread of every block, one block at a time. Throws std::runtime_error with one sentence if
// threads wait for each other forever, or if a warp function's behaviour is undefined in CUDA: its mask names threads that
// have ended, do not exist or give another mask.
void run(dim3 grid, dim3 block, const std::function<void()>& before_block, const std::function<void()>& thread,
         const std::function<void()>& after_block);

// ---- For the running thread

int lane();
void wait_for_block();  // __syncthreads()

constexpr int warp_size = 32;
constexpr std::size_t most_value_bytes = 8;
using Values = std::array<std::array<std::byte, most_value_bytes>, warp_size>;  // by lane

// Waits for all lanes of the mask and returns their values.
const Values& exchange(unsigned mask, const void* value, std::size_t bytes);

}  // namespace stretto::simt
