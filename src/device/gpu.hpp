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

// What a GPU calls its own; only the Gpu that gave them knows what they point to.
using GpuStream = struct GpuStreamHandle*;
using GpuEvent = struct GpuEventHandle*;
using GpuGraph = struct GpuGraphHandle*;

// What another process opens memory by; plain bytes, to be sent.
using GpuShareHandle = std::array<std::byte, 64>;
struct GpuSharedMemory {
  std::byte* memory = nullptr;
  GpuShareHandle handle{};
};

// All that the library asks of a GPU but messages (transport/gpu_links.hpp): one narrow table. cuda/ fills it from CUDA;
// the tests fill it with threads and host memory (tests/stand_in/), so that whatever stands above it runs without a GPU.
// Every function may be called from any thread. Each throws Error(unavailable) with what the driver said; but destroy,
// release and close, which destructors call, and enter_thread log it.
class Gpu {
 public:
  virtual ~Gpu() = default;
  virtual const GpuInfo& info() const = 0;
  // For a thread that only looks after others' work: what it asks is asked of this GPU, and spoils no graph that a program
  // records in another thread meanwhile.
  virtual void enter_thread() = 0;

  virtual GpuStream create_stream(Priority priority) = 0;
  virtual void destroy(GpuStream stream) = 0;  // what is in it still happens
  virtual GpuEvent create_event() = 0;
  virtual void destroy(GpuEvent event) = 0;
  virtual void record(GpuEvent event, GpuStream stream) = 0;
  virtual void wait(GpuStream stream, GpuEvent event) = 0;               // for the latest record; none: no wait
  virtual bool reached(GpuEvent event) = 0;                              // never blocks; throws when the GPU has failed
  virtual void synchronize(GpuEvent event) = 0;                          // blocks without spinning
  virtual double seconds_between(GpuEvent earlier, GpuEvent later) = 0;  // both reached

  // Of the GPU's memory, aligned to 256 bytes, from a pool: from this place in the stream on, until this place in the
  // stream.
  virtual std::byte* allocate(std::size_t bytes, GpuStream stream) = 0;
  virtual void release(std::byte* memory, GpuStream stream) = 0;
  virtual bool is_device_memory(const void* pointer) = 0;
  // Between any two memories. From and to ordinary host memory (not pinned) the caller is blocked meanwhile, as in CUDA.
  virtual void copy(void* to, const void* from, std::size_t bytes, GpuStream stream) = 0;
  virtual void zero(void* memory, std::size_t bytes, GpuStream stream) = 0;

  // What the thread puts into the stream from begin to end becomes a graph instead of happening; streams that wait for this
  // one and that it waits for in the end take part. Meanwhile nothing may be asked of events, and nobody waited for.
  virtual void begin_capture(GpuStream stream) = 0;
  virtual bool is_capturing(GpuStream stream) = 0;
  virtual GpuGraph end_capture(GpuStream stream) = 0;
  virtual void launch(GpuGraph graph, GpuStream stream) = 0;
  virtual void destroy(GpuGraph graph) = 0;

  virtual GpuKernels& kernels() = 0;

  // Of the host, pinned: between it and the GPU's memory, copies go in the order of the stream and block nobody. Slow to
  // get.
  virtual std::byte* allocate_pinned(std::size_t bytes) = 0;
  virtual void release_pinned(std::byte* memory) = 0;  // when no stream uses it any more

  // Of the GPU's memory, and not from the pool: other processes of the host may open it, on a GPU that reaches this one's
  // memory. Slow to get.
  virtual GpuSharedMemory allocate_shared(std::size_t bytes) = 0;
  virtual void release_shared(std::byte* memory) = 0;                // when nobody has it open any more
  virtual std::byte* open_shared(const GpuShareHandle& handle) = 0;  // not in the process that allocated it
  virtual void close_shared(std::byte* memory) = 0;                  // once for each open_shared()
};

// The GPU that CUDA gives this process, from cuda/; null where there is none, and then obstacle is the sentence that says
// why. chosen: its number by choose_gpu(), or negative. In builds with CUDA.
std::unique_ptr<Gpu> open_cuda_gpu(int chosen, std::string& obstacle);

// The one that this process uses; throws Error(unavailable) with cuda_obstacle() where there is none.
Gpu& gpu();
bool has_gpu();  // whether gpu() would return
// Whether gpu() was ever asked for: until then no memory is a GPU's. One load.
bool gpu_in_use();
// For tests: another one takes its place; null: the real one again, if there is one. The caller keeps it.
void use_gpu(Gpu* other);
// The same for this thread alone: ranks that are threads then have a GPU each.
void use_gpu_in_this_thread(Gpu* other);

// A stream's queue on gpu(), from stream/gpu_stream.cpp.
std::shared_ptr<Stream::Queue> gpu_queue(std::string name, Priority priority);

// Of a stream on a GPU; throws Error(invalid_argument) for one of the host.
GpuStream handle_of(const Stream& stream);

// Where this thread's kernels go; throws Error(invalid_argument) where they do not go to a GPU.
GpuStream gpu_stream();

// Whether a kernel's tensors lie on a GPU; throws Error(invalid_argument) where some do and some do not.
template <class... Tensors>
bool on_gpu(const char* kernel, const Tensor& first, const Tensors&... others) {
  if (first.device() == Device::cpu && (... && (others.device() == Device::cpu))) [[likely]]
    return false;
  require(first.device() == Device::cuda && (... && (others.device() == Device::cuda)),
          "{} got tensors in host memory beside others in a GPU's; put all of them into one.", kernel);
  return true;
}

}  // namespace stretto
