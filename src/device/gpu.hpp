#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "core/fail.hpp"
#include "device/gpu_kernels.hpp"
#include "stretto/device.hpp"

namespace stretto {

// A GPU's own objects, as opaque pointers; only the Gpu that returned one knows what it points to.
using GpuStream = struct GpuStreamHandle*;
using GpuEvent = struct GpuEventHandle*;
using GpuGraph = struct GpuGraphHandle*;

// The handle by which another process opens GPU memory: plain bytes that can be sent.
using GpuShareHandle = std::array<std::byte, 64>;
struct GpuSharedMemory {
  std::byte* memory = nullptr;
  GpuShareHandle handle{};
};

// Everything that the library asks of a GPU except messages (transport/gpu/gpu_links.hpp). cuda/ implements it with CUDA;
// the tests implement it with threads and host memory (tests/stand_in/), so that all code above it runs without a GPU. Every
// function may be called from any thread, and throws Error(unavailable) with the driver's reason. Only destroy, release and
// close, which destructors call, and enter_thread log the reason instead.
class Gpu {
 public:
  virtual ~Gpu() = default;
  virtual const GpuInfo& info() const = 0;
  // Called once in a thread that only watches over other threads' work: its calls then go to this GPU, and do not invalidate
  // a graph that another thread records meanwhile.
  virtual void enter_thread() = 0;

  virtual GpuStream create_stream(Priority priority) = 0;
  virtual void destroy(GpuStream stream) = 0;  // work that is in the stream still runs
  virtual GpuEvent create_event() = 0;
  virtual void destroy(GpuEvent event) = 0;
  virtual void record(GpuEvent event, GpuStream stream) = 0;
  virtual void wait(GpuStream stream, GpuEvent event) = 0;  // for the latest record(); returns at once if there is none
  virtual bool reached(GpuEvent event) = 0;                 // never blocks; throws when the GPU has failed
  virtual void synchronize(GpuEvent event) = 0;             // blocks without spinning
  virtual double seconds_between(GpuEvent earlier, GpuEvent later) = 0;  // both reached

  // GPU memory from a pool, aligned to 256 bytes. It may be used from the place of allocate() in the stream to the place of
  // release() in the stream.
  virtual std::byte* allocate(std::size_t bytes, GpuStream stream) = 0;
  virtual void release(std::byte* memory, GpuStream stream) = 0;
  virtual bool is_device_memory(const void* pointer) = 0;
  // Copies between any two memories. A copy from or to ordinary (not pinned) host memory blocks the caller, as in CUDA.
  virtual void copy(void* to, const void* from, std::size_t bytes, GpuStream stream) = 0;
  // Copies `rows` rows of `bytes` each, which begin to_step and from_step bytes after each other.
  virtual void copy_rows(void* to, std::size_t to_step, const void* from, std::size_t from_step, std::size_t bytes,
                         std::int64_t rows, GpuStream stream) = 0;
  virtual void zero(void* memory, std::size_t bytes, GpuStream stream) = 0;

  // Work that the calling thread puts into the stream between begin_capture() and end_capture() becomes a graph instead of
  // running. Streams that wait for this one, and for which it waits before the end, take part. Until the end, the thread
  // must neither query events nor wait.
  virtual void begin_capture(GpuStream stream) = 0;
  virtual bool is_capturing(GpuStream stream) = 0;
  virtual GpuGraph end_capture(GpuStream stream) = 0;
  virtual void launch(GpuGraph graph, GpuStream stream) = 0;
  virtual void destroy(GpuGraph graph) = 0;

  virtual GpuKernels& kernels() = 0;

  // Pinned host memory: copies between it and GPU memory run in stream order and do not block the caller. Allocating it is
  // slow.
  virtual std::byte* allocate_pinned(std::size_t bytes) = 0;
  virtual void release_pinned(std::byte* memory) = 0;  // after the last stream has used it

  // GPU memory outside the pool, which other processes of the host may open on a GPU that reaches this one's memory.
  // Allocating it is slow.
  virtual GpuSharedMemory allocate_shared(std::size_t bytes) = 0;
  virtual void release_shared(std::byte* memory) = 0;                // after every process has closed it
  virtual std::byte* open_shared(const GpuShareHandle& handle) = 0;  // not in the allocating process
  virtual void close_shared(std::byte* memory) = 0;                  // once for each open_shared()
};

// The GPU that CUDA gives this process, from cuda/. Returns null and sets `obstacle` to a sentence if there is no GPU.
// `chosen`: the index from choose_gpu(), or -1. CUDA builds only.
std::unique_ptr<Gpu> open_cuda_gpu(int chosen, std::string& obstacle);

// The GPU that this process uses; throws Error(unavailable) with cuda_obstacle() if there is none.
Gpu& gpu();
bool has_gpu();  // whether gpu() would return
// Whether gpu() has ever been called; before that, no memory belongs to a GPU. Costs one load.
bool gpu_in_use();
// For tests: replaces the GPU; null restores the real one, if there is one. The caller owns `other`.
void use_gpu(Gpu* other);
// Like use_gpu, for this thread only, so that ranks in threads of one process have a GPU each.
void use_gpu_in_this_thread(Gpu* other);

// A stream's queue on gpu(), from stream/gpu_stream.cpp.
std::shared_ptr<Stream::Queue> gpu_queue(std::string name, Priority priority);

// The handle of a stream on a GPU; throws Error(invalid_argument) for a stream of the host.
GpuStream handle_of(const Stream& stream);

// The GPU stream into which this thread's kernels go; throws Error(invalid_argument) if the thread computes on the host.
GpuStream gpu_stream();

// Whether a kernel's tensors are in GPU memory; throws Error(invalid_argument) if only some are.
template <class... Tensors>
bool on_gpu(const char* kernel, const Tensor& first, const Tensors&... others) {
  if (first.device() == Device::cpu && (... && (others.device() == Device::cpu))) [[likely]]
    return false;
  require(first.device() == Device::cuda && (... && (others.device() == Device::cuda)),
          "{} got some tensors in host memory and others in GPU memory; put all of them into one.", kernel);
  return true;
}

}  // namespace stretto
