#pragma once
#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>

// Of the thread that runs. (CUDA's names, of which the host's compiler knows nothing.)
extern constinit thread_local uint3 threadIdx, blockIdx;
extern constinit thread_local dim3 blockDim, gridDim;

// A stand-in for a GPU's multiprocessor: the threads of a block as fibers of one thread of the host, so that kernels run as
// their source says. Blocks, and the threads of each, take turns in another order at every launch: where a barrier is
// missing, or blocks wait for each other, results are wrong. A thread that has its turn keeps it until it waits or ends:
// what is lost when two threads change the same word at once does not show.
namespace stretto::simt {

// Calls `thread` for every thread of every block, one block at a time. Throws std::runtime_error with one sentence
// where threads wait for each other for ever, or do what CUDA leaves undefined: warp functions whose mask names threads that
// have ended, that are not there, or that give another mask.
void run(dim3 grid, dim3 block, const std::function<void()>& before_block, const std::function<void()>& thread,
         const std::function<void()>& after_block);

// ---- for the thread that runs

int lane();
void wait_for_block();  // __syncthreads()

constexpr int warp_size = 32;
constexpr std::size_t most_value_bytes = 8;
using Values = std::array<std::array<std::byte, most_value_bytes>, warp_size>;  // by lane

// What every lane of the mask has given, once all of them have come here.
const Values& exchange(unsigned mask, const void* value, std::size_t bytes);

}  // namespace stretto::simt
