#pragma once
// CUDA's keywords and functions for a C++ compiler. Included before a .cu file, this header makes its kernels functions that
// run on the host (block.hpp). They are launched into the streams of the stand-in for a GPU.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>

#include "stand_in/host_gpu.hpp"
#include "stand_in/simt/block.hpp"

// Other names than those of the same code compiled by nvcc, since a program may hold both.
#define gpu_code simt_code
#define attention simt_attention
#define CudaKernels SimtKernels

// One block runs at a time in a thread of the host, and the fibers of its threads share that thread's variables.
#undef __shared__
#define __shared__ thread_local
#undef __launch_bounds__
#define __launch_bounds__(...)

// ---- Functions of a single thread

inline float __uint_as_float(unsigned bits) { return std::bit_cast<float>(bits); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline double __longlong_as_double(long long bits) { return std::bit_cast<double>(bits); }
inline long long __double_as_longlong(double x) { return std::bit_cast<long long>(x); }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline double __fma_rn(double a, double b, double c) { return std::fma(a, b, c); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline float __fdividef(float a, float b) { return a / b; }
inline int __popc(unsigned bits) { return std::popcount(bits); }
inline unsigned __brev(unsigned bits) {
  unsigned result = 0;
  for (int i = 0; i < 32; ++i) result |= (bits >> i & 1U) << (31 - i);
  return result;
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned distance) {
  const auto bits = static_cast<unsigned long long>(high) << 32 | low;
  return static_cast<unsigned>(bits << (distance % 32) >> 32);
}
inline unsigned __vmaxu2(unsigned a, unsigned b) {  // the maxima of the upper and of the lower halves
  return std::max(a >> 16, b >> 16) << 16 | std::max(a & 0xffffU, b & 0xffffU);
}
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
  const auto bytes = static_cast<unsigned long long>(high) << 32 | low;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned selected = selector >> (4 * i) & 15U;
    if (selected > 7) throw std::runtime_error("A selector of bytes asks for copies of a sign, which the stand-in lacks.");
    result |= static_cast<unsigned>(bytes >> (8 * selected) & 0xffU) << (8 * i);
  }
  return result;
}
using std::max;
using std::min;

// ---- Functions of several threads

inline void __syncthreads() { stretto::simt::wait_for_block(); }
inline void __syncwarp(unsigned mask = 0xffffffffU) { stretto::simt::exchange(mask, nullptr, 0); }

namespace stretto::simt {

template <class T>
T value_of(const Values& values, unsigned lane) {
  T value;
  std::memcpy(&value, values[lane].data(), sizeof value);
  return value;
}

template <class T>
const Values& give(unsigned mask, const T& value) {
  static_assert(sizeof value <= most_value_bytes);
  return exchange(mask, &value, sizeof value);
}

template <class T, class Combine>
T combined(unsigned mask, const T& value, Combine combine) {
  const Values& values = give(mask, value);
  T result = value;
  for (unsigned other = 0; other < warp_size; ++other) {
    if ((mask >> other & 1) != 0) result = combine(result, value_of<T>(values, other));
  }
  return result;
}

}  // namespace stretto::simt

template <class T>
T __shfl_xor_sync(unsigned mask, T value, int distance) {
  using namespace stretto::simt;
  const Values& values = give(mask, value);
  const unsigned from = static_cast<unsigned>(lane() ^ distance);
  if (from >= warp_size || (mask >> from & 1) == 0) throw std::runtime_error("A shuffle reads a lane outside of its mask.");
  return value_of<T>(values, from);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned distance) {
  using namespace stretto::simt;
  const Values& values = give(mask, value);
  const int from = lane() - static_cast<int>(distance);
  if (from < 0) return value;
  if ((mask >> from & 1) == 0) throw std::runtime_error("A shuffle reads a lane outside of its mask.");
  return value_of<T>(values, static_cast<unsigned>(from));
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
  using namespace stretto::simt;
  return combined(mask, predicate != 0 ? 1U << lane() : 0U, std::bit_or<unsigned>());
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0 ? 1 : 0; }
inline unsigned __reduce_max_sync(unsigned mask, unsigned value) {
  return stretto::simt::combined(mask, value, [](unsigned a, unsigned b) { return std::max(a, b); });
}
template <class T>
unsigned __match_any_sync(unsigned mask, T value) {
  using namespace stretto::simt;
  const Values& values = give(mask, value);
  unsigned same = 0;
  for (unsigned other = 0; other < warp_size; ++other) {
    if ((mask >> other & 1) != 0 && value_of<T>(values, other) == value) same |= 1U << other;
  }
  return same;
}

template <class T>
T atomicAdd(T* sum, T value) {  // threads of a block take turns, and so do blocks of a stream
  return std::exchange(*sum, *sum + value);
}

// ---- CUDA's runtime functions, over the stand-in

namespace stretto::simt {

// Dynamic shared memory: a launch asks for it, and it holds garbage when a block begins. `memory` is the name that the
// kernels use.
constexpr int most_dynamic_bytes = 227 << 10;
constexpr int dynamic_bytes_without_asking = 48 << 10;
constexpr unsigned char garbage = 0xc5;

// The bytes of dynamic memory that launches of a kernel may ask for.
int allowed_bytes_of(const void* kernel);
void allow_bytes(const void* kernel, int bytes);

inline GpuStream stream_of(cudaStream_t stream) { return reinterpret_cast<GpuStream>(stream); }

template <class... Parameters, class... Arguments>
cudaError_t launch_kernel(unsigned char* (*dynamic_memory)(), const cudaLaunchConfig_t* config,
                          void (*kernel)(Parameters...), Arguments&&... arguments) {
  const dim3 grid = config->gridDim;
  const dim3 block = config->blockDim;
  const auto bytes = static_cast<std::ptrdiff_t>(config->dynamicSmemBytes);
  const auto within = [](unsigned size, unsigned most) { return 1 <= size && size <= most; };
  if (!within(grid.x, 0x7fffffffU) || !within(grid.y, 65535) || !within(grid.z, 65535) || !within(block.x, 1024) ||
      !within(block.y, 1024) || !within(block.z, 64) || block.x * block.y * block.z > 1024)
    return cudaErrorInvalidConfiguration;
  if (bytes > (dynamic_memory == nullptr ? 0 : allowed_bytes_of(reinterpret_cast<const void*>(kernel))))
    return cudaErrorInvalidValue;
  static_cast<HostGpu&>(gpu()).put(stream_of(config->stream), [=, kept = std::tuple<std::decay_t<Parameters>...>(
                                                                      std::forward<Arguments>(arguments)...)] {
    unsigned char* const memory = bytes > 0 ? dynamic_memory() : nullptr;
    const auto before = [&] {
      if (bytes > 0) std::fill(memory, memory + most_dynamic_bytes, garbage);
    };
    const auto after = [&] {
      if (bytes > 0 && std::any_of(memory + bytes, memory + most_dynamic_bytes, [](auto byte) { return byte != garbage; }))
        throw std::runtime_error("A kernel has written beyond the " + std::to_string(bytes) +
                                 " bytes of shared memory that it asked for.");
    };
    run(
        grid, block, before, [&] { std::apply(kernel, kept); }, after);
  });
  return cudaSuccess;
}

inline cudaError_t allocate(void** memory, std::size_t bytes, cudaStream_t stream) {
  *memory = gpu().allocate(bytes, stream_of(stream));
  return cudaSuccess;
}
inline cudaError_t release(void* memory, cudaStream_t stream) {
  gpu().release(static_cast<std::byte*>(memory), stream_of(stream));
  return cudaSuccess;
}
inline cudaError_t copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  gpu().copy(to, from, bytes, stream_of(stream));
  return cudaSuccess;
}
inline cudaError_t fill(void* memory, int value, std::size_t bytes, cudaStream_t stream) {
  if (value != 0) return cudaErrorNotSupported;
  gpu().zero(memory, bytes, stream_of(stream));
  return cudaSuccess;
}
inline cudaError_t device_attribute(int* value, cudaDeviceAttr attribute, int) {
  if (attribute != cudaDevAttrMultiProcessorCount) return cudaErrorNotSupported;
  *value = 2;  // so few multiprocessors that grid-stride loops take several turns
  return cudaSuccess;
}
inline cudaError_t no_device(int* device) {
  *device = 0;
  return cudaSuccess;
}
template <class Kernel>
cudaError_t function_attribute(Kernel kernel, cudaFuncAttribute attribute, int value) {
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value > most_dynamic_bytes) return cudaErrorInvalidValue;
  allow_bytes(reinterpret_cast<const void*>(kernel), value);
  return cudaSuccess;
}

}  // namespace stretto::simt

#if defined(SIMT_DYNAMIC_MEMORY)  // only in files whose kernels use it: each thread of the host has its own
namespace stretto::attention {
namespace {
alignas(16) thread_local unsigned char memory[simt::most_dynamic_bytes];
unsigned char* dynamic_memory() { return memory; }
}  // namespace
}  // namespace stretto::attention
#define cudaLaunchKernelEx(...) ::stretto::simt::launch_kernel(::stretto::attention::dynamic_memory, __VA_ARGS__)
#else
#define cudaLaunchKernelEx(...) ::stretto::simt::launch_kernel(nullptr, __VA_ARGS__)
#endif
#define cudaMallocAsync ::stretto::simt::allocate
#define cudaFreeAsync ::stretto::simt::release
#define cudaMemcpyAsync ::stretto::simt::copy
#define cudaMemsetAsync ::stretto::simt::fill
#define cudaDeviceGetAttribute ::stretto::simt::device_attribute
#define cudaGetDevice ::stretto::simt::no_device
#define cudaFuncSetAttribute ::stretto::simt::function_attribute
