// The Gpu of device/gpu.hpp, implemented with the CUDA runtime.
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <string>

#include "core/setting_values.hpp"
#include "device/cuda/cuda_kernels.hpp"
#include "device/cuda/runtime/cuda_check.hpp"
#include "device/cuda/runtime/relaxed_capture.hpp"
#include "device/gpu.hpp"

namespace stretto {
namespace {

// Makes the driver's memory pool keep freed memory for the next allocation.
void keep_freed_memory(int device) {
  cudaMemPool_t pool = nullptr;
  check_cuda(cudaDeviceGetDefaultMemPool(&pool, device), "find the memory pool");
  std::uint64_t everything = ~std::uint64_t{0};
  check_cuda(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &everything), "set up the memory pool");
  // Otherwise an allocation in one rank's stream might wait for another rank's stream, which may wait for the first.
  int never = 0;
  check_cuda(cudaMemPoolSetAttribute(pool, cudaMemPoolReuseAllowInternalDependencies, &never), "set up the memory pool");
}

// The format of nvidia-smi: 16 bytes in groups of 4, 2, 2, 2 and 6.
std::string text_of(const cudaUUID_t& uuid) {
  std::string text = "GPU";
  for (int i = 0; i < 16; ++i) {
    if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", static_cast<unsigned char>(uuid.bytes[i]));
  }
  return text;
}

GpuInfo info_of(int device, int devices) {
  cudaDeviceProp properties;
  check_cuda(cudaGetDeviceProperties(&properties, device), "describe the GPU");
  return {properties.name,           device,
          properties.major,          properties.minor,
          properties.totalGlobalMem, properties.multiProcessorCount,
          text_of(properties.uuid),  devices};
}

class CudaGpu final : public Gpu {
 public:
  CudaGpu(int device, int devices) : info_(info_of(device, devices)) {
    choose();
    keep_freed_memory(device);
  }

  const GpuInfo& info() const override { return info_; }

  void enter_thread() override {
    note_cuda(cudaSetDevice(info_.index), "choose the GPU");
    cudaStreamCaptureMode mode = cudaStreamCaptureModeThreadLocal;
    note_cuda(cudaThreadExchangeStreamCaptureMode(&mode), "set the mode of capture");
  }

  GpuStream create_stream(Priority priority) override {
    choose();
    int least = 0;
    int greatest = 0;
    check_cuda(cudaDeviceGetStreamPriorityRange(&least, &greatest), "ask for the priorities of streams");
    const int number = priority == Priority::urgent       ? greatest
                       : priority == Priority::background ? least
                                                          : (least + greatest) / 2;
    cudaStream_t stream = nullptr;
    check_cuda(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, number), "make a stream");
    return reinterpret_cast<GpuStream>(stream);
  }
  void destroy(GpuStream stream) override { note_cuda(cudaStreamDestroy(cuda(stream)), "destroy a stream"); }

  GpuEvent create_event() override {
    choose();
    cudaEvent_t event = nullptr;
    check_cuda(cudaEventCreateWithFlags(&event, cudaEventBlockingSync), "make an event");
    return reinterpret_cast<GpuEvent>(event);
  }
  void destroy(GpuEvent event) override { note_cuda(cudaEventDestroy(cuda(event)), "destroy an event"); }
  void record(GpuEvent event, GpuStream stream) override {
    check_cuda(cudaEventRecord(cuda(event), cuda(stream)), "record an event");
  }
  void wait(GpuStream stream, GpuEvent event) override {
    check_cuda(cudaStreamWaitEvent(cuda(stream), cuda(event), 0), "make a stream wait for an event");
  }
  bool reached(GpuEvent event) override {
    const cudaError_t result = cudaEventQuery(cuda(event));
    if (result == cudaErrorNotReady) return false;
    check_cuda(result, "ask for an event");
    return true;
  }
  void synchronize(GpuEvent event) override { check_cuda(cudaEventSynchronize(cuda(event)), "wait for an event"); }
  double seconds_between(GpuEvent earlier, GpuEvent later) override {
    float milliseconds = 0;
    check_cuda(cudaEventElapsedTime(&milliseconds, cuda(earlier), cuda(later)), "measure the time between two events");
    return static_cast<double>(milliseconds) * 1e-3;
  }

  // Also allowed while this thread records a graph of another stream: the allocation is then not part of the graph.
  std::byte* allocate(std::size_t bytes, GpuStream stream) override {
    choose();
    const RelaxedCapture relaxed;
    void* memory = nullptr;
    require_memory(cudaMallocAsync(&memory, bytes, cuda(stream)), bytes);
    return static_cast<std::byte*>(memory);
  }
  void release(std::byte* memory, GpuStream stream) override {
    const RelaxedCapture relaxed;
    note_cuda(cudaFreeAsync(memory, cuda(stream)), "free memory");
  }
  std::byte* allocate_pinned(std::size_t bytes) override {
    choose();
    void* memory = nullptr;
    check_cuda(cudaHostAlloc(&memory, bytes, cudaHostAllocPortable), "allocate pinned memory");
    return static_cast<std::byte*>(memory);
  }
  void release_pinned(std::byte* memory) override { note_cuda(cudaFreeHost(memory), "free pinned memory"); }
  bool is_device_memory(const void* pointer) override {
    cudaPointerAttributes attributes;
    if (cudaPointerGetAttributes(&attributes, pointer) != cudaSuccess) {
      cudaGetLastError();
      return false;
    }
    return attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged;
  }
  void copy(void* to, const void* from, std::size_t bytes, GpuStream stream) override {
    check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, cuda(stream)), "copy memory");
  }
  void copy_rows(void* to, std::size_t to_step, const void* from, std::size_t from_step, std::size_t bytes,
                 std::int64_t rows, GpuStream stream) override {
    check_cuda(cudaMemcpy2DAsync(to, to_step, from, from_step, bytes, static_cast<std::size_t>(rows), cudaMemcpyDefault,
                                 cuda(stream)),
               "copy rows of memory");
  }
  void zero(void* memory, std::size_t bytes, GpuStream stream) override {
    check_cuda(cudaMemsetAsync(memory, 0, bytes, cuda(stream)), "fill memory with zeros");
  }

  GpuSharedMemory allocate_shared(std::size_t bytes) override {
    choose();
    // Whole granules: CUDA shares only whole ones, and would expose other memory in the same granule as well.
    constexpr std::size_t granule = std::size_t{2} << 20;
    bytes = (bytes + granule - 1) / granule * granule;
    void* memory = nullptr;
    require_memory(cudaMalloc(&memory, bytes), bytes);
    cudaIpcMemHandle_t handle;
    if (const cudaError_t result = cudaIpcGetMemHandle(&handle, memory); result != cudaSuccess) {
      cudaFree(memory);
      check_cuda(result, "make a handle by which other processes open memory");
    }
    GpuSharedMemory shared{static_cast<std::byte*>(memory), {}};
    static_assert(sizeof handle == sizeof shared.handle);
    std::memcpy(shared.handle.data(), &handle, sizeof handle);
    return shared;
  }
  void release_shared(std::byte* memory) override { note_cuda(cudaFree(memory), "free shared memory"); }
  std::byte* open_shared(const GpuShareHandle& handle) override {
    choose();
    cudaIpcMemHandle_t theirs;
    std::memcpy(&theirs, handle.data(), sizeof theirs);
    void* memory = nullptr;
    check_cuda(cudaIpcOpenMemHandle(&memory, theirs, cudaIpcMemLazyEnablePeerAccess), "open another process's memory");
    return static_cast<std::byte*>(memory);
  }
  void close_shared(std::byte* memory) override {
    note_cuda(cudaIpcCloseMemHandle(memory), "close another process's memory");
  }

  void begin_capture(GpuStream stream) override {
    check_cuda(cudaStreamBeginCapture(cuda(stream), cudaStreamCaptureModeThreadLocal), "begin a graph");
  }
  bool is_capturing(GpuStream stream) override {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    const cudaError_t result = cudaStreamIsCapturing(cuda(stream), &status);
    if (result == cudaErrorStreamCaptureImplicit) {
      // It is the default stream, which waits for a stream that is being captured.
      cudaGetLastError();
      return true;
    }
    check_cuda(result, "ask whether a graph is being made");
    return status != cudaStreamCaptureStatusNone;
  }
  GpuGraph end_capture(GpuStream stream) override {
    cudaGraph_t graph = nullptr;
    check_cuda(cudaStreamEndCapture(cuda(stream), &graph), "end a graph");
    cudaGraphExec_t runnable = nullptr;
    const cudaError_t result = cudaGraphInstantiate(&runnable, graph, 0);
    cudaGraphDestroy(graph);
    check_cuda(result, "make a graph ready");
    return reinterpret_cast<GpuGraph>(runnable);
  }
  void launch(GpuGraph graph, GpuStream stream) override {
    check_cuda(cudaGraphLaunch(reinterpret_cast<cudaGraphExec_t>(graph), cuda(stream)), "launch a graph");
  }
  void destroy(GpuGraph graph) override {
    note_cuda(cudaGraphExecDestroy(reinterpret_cast<cudaGraphExec_t>(graph)), "destroy a graph");
  }

  GpuKernels& kernels() override {
    choose();  // kernels run on the GPU that is current in the calling thread
    return kernels_;
  }

 private:
  void require_memory(cudaError_t result, std::size_t bytes) const {
    if (result != cudaErrorMemoryAllocation) return check_cuda(result, "allocate memory");
    cudaGetLastError();
    fail(ErrorCode::unavailable, "The GPU has no {} bytes of memory left of its {} ({}).", bytes, info_.memory_bytes,
         cudaGetErrorName(result));
  }

  // CUDA keeps the current GPU for each thread.
  void choose() const { check_cuda(cudaSetDevice(info_.index), "choose the GPU"); }

  GpuInfo info_;
  CudaKernels kernels_;
};

// STRETTO_GPU, else the program's choice, else the local rank modulo the number of GPUs, from the environment of the
// launcher: torchrun and this library, Open MPI, MPICH, Slurm.
int chosen_device(int devices, int chosen_by_program) {
  const std::string chosen = setting("STRETTO_GPU");
  if (!chosen.empty()) {
    int number = -1;
    const auto [end, error] = std::from_chars(chosen.data(), chosen.data() + chosen.size(), number);
    return error == std::errc() && end == chosen.data() + chosen.size() ? number : -1;
  }
  if (chosen_by_program >= 0) return chosen_by_program;
  for (const char* const name : {"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"}) {
    if (const char* const local_rank = std::getenv(name)) return std::atoi(local_rank) % devices;
  }
  return 0;
}

}  // namespace

std::unique_ptr<Gpu> open_cuda_gpu(int chosen, std::string& obstacle) {
  int devices = 0;
  const cudaError_t result = cudaGetDeviceCount(&devices);
  if (result != cudaSuccess || devices == 0) {
    cudaGetLastError();
    int driver = 0;
    cudaDriverGetVersion(&driver);
    if (result == cudaSuccess || result == cudaErrorNoDevice) {
      obstacle = "CUDA finds no GPU on this machine; compute on the host, with cpu as the device.";
    } else if (driver == 0) {
      obstacle = "CUDA cannot be used here: no NVIDIA driver is installed; compute on the host, with cpu as the device.";
    } else {
      obstacle = fmt::format("CUDA cannot be used here: {} ({}); compute on the host, with cpu as the device.",
                             cudaGetErrorString(result), cudaGetErrorName(result));
    }
    return nullptr;
  }
  const int device = chosen_device(devices, chosen);
  if (device < 0 || device >= devices) {
    const std::string asked = setting("STRETTO_GPU");
    obstacle = fmt::format("GPU {} was chosen, but this machine has {} GPUs, counted from 0.",
                           asked.empty() ? std::to_string(device) : asked, devices);
    return nullptr;
  }
  return std::make_unique<CudaGpu>(device, devices);
}

}  // namespace stretto
