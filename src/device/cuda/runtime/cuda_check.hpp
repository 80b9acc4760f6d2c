#pragma once
#include <cuda_runtime_api.h>

#include "device/gpu_kernels.hpp"

// Every file of kernels includes this header, and nvcc compiles it for each architecture: the sentences are made in
// cuda_check.cpp.
namespace stretto {

using GpuEvent = struct GpuEventHandle*;

[[noreturn]] void fail_in_cuda(cudaError_t result, const char* what);
void log_failure_in_cuda(cudaError_t result, const char* what);

// Throws Error(unavailable) with CUDA's reason.
inline void check_cuda(cudaError_t result, const char* what) {
  if (result != cudaSuccess) [[unlikely]]
    fail_in_cuda(result, what);
}

// Like check_cuda for calls in destructors: logs the reason instead of throwing.
inline void note_cuda(cudaError_t result, const char* what) {
  if (result != cudaSuccess) [[unlikely]]
    log_failure_in_cuda(result, what);
}

inline cudaStream_t cuda(GpuStream stream) { return reinterpret_cast<cudaStream_t>(stream); }
inline cudaEvent_t cuda(GpuEvent event) { return reinterpret_cast<cudaEvent_t>(event); }

}  // namespace stretto
