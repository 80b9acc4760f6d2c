// The table of cuda_calls.hpp, filled from the CUDA runtime.
#include <atomic>

#include "interop/nccl/calls/answers.hpp"
#include "interop/nccl/libraries/cuda_calls.hpp"

namespace stretto::nccl_door {
namespace {

void check_cuda(cudaError_t result, const char* what) {
  if (result == cudaSuccess) [[likely]]
    return;
  cudaGetLastError();  // clears the error, so that the program does not see it
  throw Refusal(ncclUnhandledCudaError,
                fmt::format("CUDA could not {}: {} ({}).", what, cudaGetErrorString(result), cudaGetErrorName(result)));
}

// In nvidia-smi's format: 16 bytes in groups of 4, 2, 2, 2 and 6.
std::string text_of(const cudaUUID_t& uuid) {
  std::string text = "GPU";
  for (int i = 0; i < 16; ++i) {
    if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", static_cast<unsigned char>(uuid.bytes[i]));
  }
  return text;
}

class CudaLibrary final : public CudaCalls {
 public:
  int device() override {
    int device = 0;
    check_cuda(cudaGetDevice(&device), "say which GPU the thread uses");
    return device;
  }
  void use_device(int device) override { check_cuda(cudaSetDevice(device), "choose a GPU"); }
  GpuDescription describe(int device) override {
    cudaDeviceProp properties;
    check_cuda(cudaGetDeviceProperties(&properties, device), "describe a GPU");
    return {text_of(properties.uuid), properties.name};
  }
  bool is_on_gpu(const void* pointer) override {
    cudaPointerAttributes attributes;
    check_cuda(cudaPointerGetAttributes(&attributes, pointer), "say where memory lies");
    return attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged;
  }
  bool is_capturing(cudaStream_t stream) override {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    const cudaError_t result = cudaStreamIsCapturing(stream, &status);
    // The stream is the legacy default stream, and another stream is being captured: the default stream cannot be used then.
    if (result == cudaErrorStreamCaptureImplicit) {
      cudaGetLastError();
      return true;
    }
    check_cuda(result, "say whether a graph is being made");
    return status != cudaStreamCaptureStatusNone;
  }

  void* allocate(std::size_t bytes) override {
    void* memory = nullptr;
    check_cuda(cudaMalloc(&memory, bytes), "allocate memory");
    return memory;
  }
  void release(void* memory) override { cudaFree(memory); }
  cudaStream_t create_stream() override {
    cudaStream_t stream = nullptr;
    check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "make a stream");
    return stream;
  }
  void destroy(cudaStream_t stream) override { cudaStreamDestroy(stream); }
  cudaEvent_t create_event() override {
    cudaEvent_t event = nullptr;
    check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "make an event");
    return event;
  }
  void destroy(cudaEvent_t event) override { cudaEventDestroy(event); }
  void record(cudaEvent_t event, cudaStream_t stream) override {
    check_cuda(cudaEventRecord(event, stream), "record an event");
  }
  void wait(cudaStream_t stream, cudaEvent_t event) override {
    check_cuda(cudaStreamWaitEvent(stream, event, 0), "make a stream wait for an event");
  }
};

std::atomic<CudaCalls*> instead = nullptr;

}  // namespace

CudaCalls& cuda() {
  if (CudaCalls* const other = instead) return *other;
  static auto& library = *new CudaLibrary;  // never destroyed: used until the process ends
  return library;
}

void use_cuda(CudaCalls* other) { instead = other; }

}  // namespace stretto::nccl_door
