#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <string>

// What the door itself asks of CUDA: one narrow table. cuda_library.cpp fills it from the runtime, the tests from their
// stand-in for a GPU.
namespace stretto::nccl_door {

struct GpuDescription {
  std::string uuid, name;
};

// Each throws Refusal(ncclUnhandledCudaError) with what CUDA said; but destroy and release, which destructors call.
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
  virtual void wait(cudaStream_t stream, cudaEvent_t event) = 0;  // for the latest record; none: no wait
};

CudaCalls& cuda();
void use_cuda(CudaCalls* other);  // for tests; null: the real one again

}  // namespace stretto::nccl_door
