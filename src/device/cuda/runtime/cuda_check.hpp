#pragma once
#include <cuda_runtime_api.h>

#include "device/gpu_kernels.hpp"

// Every kernel's file includes this, and nvcc reads it once for each kind of GPU: the sentences are made in cuda_check.cpp.
namespace stretto {

using GpuEvent = struct GpuEventHandle*;

[[noreturn]] void fail_in_cuda(cudaError_t result, const char* what);
void log_failure_in_cuda(cudaError_t result, const char* what);

// Throws Error(unavailable) with what CUDA said.
inline void check_cuda(cudaError_t result, const char* what) {
  if (result != cudaSuccess) [[unlikely]]
    fail_in_cuda(result, what);
}

// For what destructors call: the log gets it.
inline void note_cuda(cudaError_t result, const char* what) {
  if (result != cudaSuccess) [[unlikely]]
    log_failure_in_cuda(result, what);
}

inline cudaStream_t cuda(GpuStream stream) { return reinterpret_cast<cudaStream_t>(stream); }
inline cudaEvent_t cuda(GpuEvent event) { return reinterpret_cast<cudaEvent_t>(event); }

}  // namespace stretto
