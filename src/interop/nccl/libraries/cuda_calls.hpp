#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <string>

// The few functions of CUDA that the door calls. cuda_library.cpp implements them by the CUDA runtime, the tests by a
// simulated GPU.
namespace stretto::nccl_door {

struct GpuDescription {
  std::string uuid, name;
};

// Each throws Refusal(ncclUnhandledCudaError) with CUDA's error, except destroy and release, which destructors call.
class CudaCalls {
 public:
  virtual ~CudaCalls() = default;
  virtual int device() = 0;  // of this thread
  virtual void use_device(int device) = 0;
  virtual GpuDescription describe(int device) = 0;
  virtual bool is_on_gpu(const void* pointer) = 0;
  virtual bool is_capturing(cudaStream_t stream) = 0;

  virtual void* allocate(std::size_t bytes) = 0;
  virtual void release(void* memory) = 0;
  virtual cudaStream_t create_stream() = 0;
  virtual void destroy(cudaStream_t stream) = 0;
  virtual cudaEvent_t create_event() = 0;
  virtual void destroy(cudaEvent_t event) = 0;
  virtual void record(cudaEvent_t event, cudaStream_t stream) = 0;
  virtual void wait(cudaStream_t stream, cudaEvent_t event) = 0;  // for the latest record; no wait if there is none
};

CudaCalls& cuda();
void use_cuda(CudaCalls* other);  // for tests; null restores the real one

}  // namespace stretto::nccl_door
