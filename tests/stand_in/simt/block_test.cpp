// Kernels with known results, and the errors that the stand-in reports.
#include "stand_in/simt/cuda_words.hpp"
//
#include <gmock/gmock.h>

#include <set>
#include <vector>

#include "device/cuda/cuda_kernels.hpp"
#include "support/error.hpp"

namespace stretto::attention {  // launches in this file use this namespace's dynamic memory
namespace {

__global__ void write_last(int bytes, int* first_seen) {
  *first_seen = memory[0];
  memory[bytes - 1] = 1;
}

// Launches a kernel with `asked` bytes of dynamic memory that writes byte `written` - 1, on a GPU of its own. Returns the
// error; empty: none.
std::string failure_of(int asked, int written, int allowed = 0) {
  Gpu& others = gpu();
  HostGpu own;
  use_gpu(&own);
  const GpuStream stream = own.create_stream(Priority::normal);
  const GpuEvent event = own.create_event();
  int first_seen = -1;
  if (allowed > 0) cudaFuncSetAttribute(write_last, cudaFuncAttributeMaxDynamicSharedMemorySize, allowed);
  cudaLaunchConfig_t config = {};
  config.gridDim = config.blockDim = 1;
  config.dynamicSmemBytes = static_cast<std::size_t>(asked);
  config.stream = reinterpret_cast<cudaStream_t>(stream);
  const cudaError_t launched = cudaLaunchKernelEx(&config, write_last, written, &first_seen);
  std::string failure = launched == cudaSuccess ? "" : cudaGetErrorName(launched);
  try {
    own.record(event, stream);
    own.synchronize(event);
  } catch (const std::exception& error) {
    failure = error.what();
  }
  if (launched == cudaSuccess && first_seen != simt::garbage) failure += " The memory was not garbage.";
  use_gpu(&others);
  return failure;
}

}  // namespace
}  // namespace stretto::attention

namespace stretto {
namespace {

using testing::Each;
using testing::HasSubstr;

// The value that the kernel returns in each thread, by block and thread.
template <class Kernel>
std::vector<unsigned> run(dim3 grid, dim3 block, Kernel kernel) {
  const unsigned threads = block.x * block.y * block.z;
  std::vector<unsigned> results(grid.x * grid.y * grid.z * threads, 12345);
  const auto nothing = [] {};
  const std::function<void()> thread = [&] {
    const unsigned in_grid = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    const unsigned in_block = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    const unsigned value = kernel();
    results[in_grid * threads + in_block] = value;
  };
  simt::run(grid, block, nothing, thread, nothing);
  return results;
}

template <class Kernel>
std::string refusal_of(dim3 block, Kernel kernel) {
  return sentence_of([&] { run(1, block, kernel); });
}

TEST(Simt, EveryThreadOfEveryBlockRunsOnce) {
  const std::vector<unsigned> results = run({2, 3, 4}, {5, 6, 7}, [n = 0U]() mutable { return n++; });
  EXPECT_EQ(std::set<unsigned>(results.begin(), results.end()).size(), 2U * 3 * 4 * 5 * 6 * 7);
}

// Each thread passes a number to the thread `distance` before it.
unsigned passed_on(unsigned distance, bool waits) {
  __shared__ unsigned numbers[256];
  numbers[threadIdx.x] = blockIdx.x * 1000 + threadIdx.x;
  if (waits) __syncthreads();
  const unsigned got = numbers[(threadIdx.x + distance) % 256];
  if (waits) __syncthreads();
  return got - blockIdx.x * 1000 == (threadIdx.x + distance) % 256;
}

TEST(Simt, ABarrierIsWaitedForByAll) {
  EXPECT_THAT(run(9, 256, [] { return passed_on(77, true); }), Each(1));
}

TEST(Simt, AMissingBarrierShows) {  // the control
  EXPECT_THAT(run(9, 256, [] { return passed_on(77, false); }), testing::Contains(0));
}

TEST(Simt, ABarrierIsForThoseThatHaveNotEnded) {
  EXPECT_THAT(run(1, 64,
                  [] {
                    if (threadIdx.x >= 40) return 1U;
                    __syncthreads();
                    return 1U;
                  }),
              Each(1));
}

TEST(Simt, WarpFunctionsGiveWhatTheySay) {
  const auto all_right = [] {
    const unsigned lane = threadIdx.x % 32;
    const unsigned warp = threadIdx.x / 32;
    bool right = true;
    for (unsigned i = 0; i < 5; ++i) {  // directly one after the other
      right &= __shfl_xor_sync(0xffffffffU, threadIdx.x * 10 + i, 1 << i) == (threadIdx.x ^ 1U << i) * 10 + i;
      right &= __shfl_up_sync(0xffffffffU, lane + i, 1U << i) == (lane < 1U << i ? lane : lane - (1U << i)) + i;
    }
    right &= __ballot_sync(0xffffffffU, lane % 3 == warp) == (warp == 0   ? 0x49249249U
                                                              : warp == 1 ? 0x92492492U
                                                                          : 0x24924924U);
    right &= __any_sync(0xffffffffU, lane == 31 && warp == 1) == (warp == 1);
    right &= __reduce_max_sync(0xffffffffU, (lane + 7 * warp) % 32 + 5) == 36;
    right &= __match_any_sync(0xffffffffU, lane % 16) == (0x00010001U << lane % 16);
    // The halves of a warp meet separately, the second one twice as often.
    const unsigned half = lane < 16 ? 0x0000ffffU : 0xffff0000U;
    for (unsigned i = 0; i < (lane < 16 ? 3 : 6); ++i) right &= __shfl_xor_sync(half, lane * i, 8) == (lane ^ 8) * i;
    __syncwarp();
    return static_cast<unsigned>(right);
  };
  EXPECT_THAT(run(4, 96, all_right), Each(1));
}

TEST(Simt, ThreadsThatWaitForEverAreNamed) {
  EXPECT_THAT(
      refusal_of(64,
                 [] {
                   if (threadIdx.x < 32) {
                     __syncthreads();
                   } else if (threadIdx.x != 40) {
                     __syncwarp();
                   } else {
                     __syncthreads();
                   }
                   return 1U;
                 }),
      "Block 0 of 64 threads is stuck: 33 of 64 that have not ended are at the barrier; lanes 0xfffffeff of the mask "
      "0xffffffff.");
}

TEST(Simt, MasksThatAreWrongAreRefused) {
  EXPECT_THAT(refusal_of(64, [] { return __ballot_sync(threadIdx.x == 3 ? 0xf0U : 0xffffffffU, 1); }),
              HasSubstr("Thread 3 of block 0 is not in its own mask 0xf0"));
  EXPECT_THAT(refusal_of(20, [] { return __ballot_sync(0xffffffffU, 1); }), HasSubstr("waits for lanes 0xfff00000, which"));
  EXPECT_THAT(refusal_of(32,
                         [] {
                           if (threadIdx.x == 5) return 0U;
                           __syncthreads();
                           return __ballot_sync(0xffffffffU, 1);
                         }),
              HasSubstr("waits for lanes 0x20, which have ended"));
  EXPECT_THAT(refusal_of(32, [] { return __shfl_xor_sync(0xffffffffU, 1U, 32); }), HasSubstr("a lane outside of its mask"));
  // Blocks still run after those errors.
  EXPECT_THAT(run(1, 32, [] { return __ballot_sync(0xffffffffU, 1); }), Each(0xffffffffU));
}

TEST(Simt, DynamicMemoryIsAsLargeAsWasAskedFor) {
  EXPECT_EQ(attention::failure_of(1000, 1000), "");
  EXPECT_THAT(attention::failure_of(1000, 1001), HasSubstr("written beyond the 1000 bytes of shared memory"));
  EXPECT_EQ(attention::failure_of((48 << 10) + 1, 1), "cudaErrorInvalidValue");
  EXPECT_EQ(attention::failure_of((48 << 10) + 1, 1, 100 << 10), "");
}

TEST(SimtDeathTest, APackLiesAtItsAlignment) {
  alignas(16) const std::uint8_t bytes[64] = {};
  const volatile int at_fault = 8;
  const auto load = [&](int offset) { return run(1, 1, [&] { return reinterpret_cast<const uint4*>(bytes + offset)->x; }); };
  EXPECT_THAT(load(16), Each(0));
  EXPECT_DEATH(load(at_fault), "misaligned address");
}

TEST(Simt, IsWhatTheKernelsTestsOfThisProgramRun) { EXPECT_NE(dynamic_cast<SimtKernels*>(&gpu().kernels()), nullptr); }

}  // namespace
}  // namespace stretto
