#pragma once
#include <cuda_runtime_api.h>

#include "core/fail.hpp"
#include "core/log.hpp"
#include "device/gpu.hpp"

namespace stretto {

// Throws Error(unavailable) with what CUDA said.
inline void check_cuda(cudaError_t result, const char* what) {
  if (result == cudaSuccess) [[likely]]
    return;
  cudaGetLastError();  // so that the next call does not report it again
  fail(ErrorCode::unavailable, "CUDA could not {}: {} ({}).", what, cudaGetErrorString(result), cudaGetErrorName(result));
}

// For what destructors call: the log gets it.
inline void note_cuda(cudaError_t result, const char* what) {
  if (result == cudaSuccess) [[likely]]
    return;
  cudaGetLastError();
  log().error("CUDA could not {}: {} ({}).", what, cudaGetErrorString(result), cudaGetErrorName(result));
}

inline cudaStream_t cuda(GpuStream stream) { return reinterpret_cast<cudaStream_t>(stream); }
inline cudaEvent_t cuda(GpuEvent event) { return reinterpret_cast<cudaEvent_t>(event); }

}  // namespace stretto
