#include "device/cuda/runtime/cuda_check.hpp"

#include "core/fail.hpp"
#include "core/log.hpp"

namespace stretto {

// Both functions clear CUDA's last error, so that the next call does not report it again.
void fail_in_cuda(cudaError_t result, const char* what) {
  cudaGetLastError();
  fail(ErrorCode::unavailable, "CUDA could not {}: {} ({}).", what, cudaGetErrorString(result), cudaGetErrorName(result));
}

void log_failure_in_cuda(cudaError_t result, const char* what) {
  cudaGetLastError();
  log().error("CUDA could not {}: {} ({}).", what, cudaGetErrorString(result), cudaGetErrorName(result));
}

}  // namespace stretto
