#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "device/gpu.hpp"
#include "stand_in/host_kernels.hpp"
#include "stand_in/host_memory.hpp"
#include "stand_in/host_sharing.hpp"
#include "stand_in/host_stream.hpp"

// A stand-in for a GPU, made of threads and host memory. All code above the table of device/gpu.hpp runs over it, with the
// same results as on the host. It is stricter than a GPU: CUDA's undefined behaviour is a violation here, and a missing wait
// gives wrong values.
namespace stretto {

struct HostGpuOptions {
  // Each stream sleeps up to longest_delay_us microseconds before about half of its functions, at random from `seed`, so
  // that missing waits between streams show.
  int longest_delay_us = 0;
  std::uint64_t seed = 1;
  // For controls.
  bool ignores_waits = false;    // streams do not wait for each other
  bool foresees_events = false;  // reached() is always true
  bool cannot_open = false;      // memory of other processes cannot be opened, like CUDA's in some containers
};

// A broken rule throws Error(internal) and is kept in violations(); violations by destructors are only kept there. The
// rules:
// - During a capture, the thread that began it must not query or wait for events, nor copy between ordinary host memory and
//   the GPU. No thread may query an event that was recorded in a capture.
// - The thread that began a capture must end it, in the same stream, after this stream has waited for every stream that took
//   part. Captured streams must not wait for events recorded outside, nor other streams for events recorded inside.
// - Captured streams must not allocate or release memory. (CUDA allows it, but such a graph can be launched again only after
//   the memory that it allocated was released.)
// - Handles must be this GPU's and alive; kernels, copies and zero() must get its memory, not released yet.
// - Memory of other processes must be opened from a handle of another process and closed once; memory must not be released
//   while it is open elsewhere.
// - Streams may wait for words in pinned memory only, outside of captures, and pinned memory must outlive these waits.
class HostGpu final : public Gpu {
 public:
  // kernels: null for HostKernels.
  explicit HostGpu(const HostGpuOptions& options = {}, std::unique_ptr<GpuKernels> kernels = nullptr);
  ~HostGpu() override;  // waits for all streams
  HostGpu(const HostGpu&) = delete;
  HostGpu& operator=(const HostGpu&) = delete;

  // ---- Beyond the table
  // The stream's thread calls the function in stream order; during a capture it becomes part of the graph and is called at
  // each launch. It may block for other streams and ranks. An exception from it is the failure of the whole GPU.
  void put(GpuStream stream, std::function<void()> function);
  void require_memory(const char* who, const void* first, std::size_t bytes);  // a violation unless it is this GPU's memory
  // Blocks until the stream has done everything put into it; a violation where this thread may not wait for an event either.
  void wait_until_here(GpuStream stream, const char* who);
  std::vector<std::string> violations() const;
  std::string failure() const { return failure_->what(); }  // of functions put into streams; empty: none
  // The number of functions, records and waits that this thread has put into streams of any GPU.
  static std::uint64_t put_by_this_thread();
  std::size_t bytes_in_use() const { return memory_.bytes_in_use(); }
  std::size_t pinned_bytes_in_use() const { return pinned_.bytes_in_use(); }
  std::size_t shared_bytes_in_use() const { return sharing_.bytes_in_use(); }  // allocated here, or opened
  std::size_t memories_open() const { return sharing_.opened(); }
  std::size_t streams_in_use() const;
  std::size_t events_in_use() const;

  // ---- The table
  void enter_thread() override {}
  const GpuInfo& info() const override { return info_; }
  GpuStream create_stream(Priority priority) override;
  void destroy(GpuStream stream) override;
  GpuEvent create_event() override;
  void destroy(GpuEvent event) override;
  void record(GpuEvent event, GpuStream stream) override;
  void wait(GpuStream stream, GpuEvent event) override;
  bool reached(GpuEvent event) override;
  void synchronize(GpuEvent event) override;
  double seconds_between(GpuEvent earlier, GpuEvent later) override;
  std::byte* allocate(std::size_t bytes, GpuStream stream) override;
  void release(std::byte* memory, GpuStream stream) override;
  std::byte* allocate_pinned(std::size_t bytes) override;
  void release_pinned(std::byte* memory) override;
  bool is_device_memory(const void* pointer) override { return is_here(pointer, 1); }
  GpuSharedMemory allocate_shared(std::size_t bytes) override { return sharing_.allocate(bytes); }
  void release_shared(std::byte* memory) override;
  std::byte* open_shared(const GpuShareHandle& handle) override;
  void close_shared(std::byte* memory) override;
  void copy(void* to, const void* from, std::size_t bytes, GpuStream stream) override;
  void copy_rows(void* to, std::size_t to_step, const void* from, std::size_t from_step, std::size_t bytes,
                 std::int64_t rows, GpuStream stream) override;
  void zero(void* memory, std::size_t bytes, GpuStream stream) override;
  void begin_capture(GpuStream stream) override;
  bool is_capturing(GpuStream stream) override;
  GpuGraph end_capture(GpuStream stream) override;
  void launch(GpuGraph graph, GpuStream stream) override;
  void destroy(GpuGraph graph) override;
  GpuKernels& kernels() override { return *kernels_; }

 private:
  // A handle is a number that a process uses once, so that handles of destroyed objects and other GPUs are recognised.
  using Number = std::uintptr_t;
  using Functions = std::vector<std::function<void()>>;
  using Seen = std::map<Number, std::size_t>;  // by stream of a capture, the number of its functions that were waited for
  struct Capture;
  struct Queue {
    std::shared_ptr<HostStream> stream;
    std::shared_ptr<Capture> capture;  // the one that the stream takes part in
  };
  struct EventRecord {  // an event's latest record
    std::shared_ptr<Marker> marker;
    std::shared_ptr<Capture> capture;
    Seen seen;
  };
  struct CapturedGraph {
    std::shared_ptr<const Functions> functions;
    std::shared_ptr<Marker> last_launch;
  };

  bool is_here(const void* first, std::size_t bytes) const {
    return memory_.holds(first, bytes) || sharing_.holds(first, bytes);
  }
  [[noreturn]] void violate(const std::string& sentence);
  // Both need the mutex.
  Queue& queue(GpuStream stream, const char* who);
  EventRecord& latest_record(GpuEvent event, const char* who);
  void put_into(Queue& queue, Number number, std::function<void()> function);
  void require_no_capture_here(const char* who);
  std::shared_ptr<Marker> marker_to_ask(GpuEvent event, const char* who);
  void throw_if_failed() const;
  void join_ended();

  HostGpuOptions options_;
  GpuInfo info_;
  HostMemory memory_, pinned_;
  HostSharing sharing_;
  std::shared_ptr<Failure> failure_ = std::make_shared<Failure>();
  mutable std::mutex mutex_;
  std::unordered_map<Number, Queue> queues_;
  std::unordered_map<Number, EventRecord> events_;
  std::unordered_map<Number, CapturedGraph> graphs_;
  std::set<std::thread::id> capturing_threads_;
  std::vector<std::shared_ptr<HostStream>> ending_;
  mutable std::mutex violations_mutex_;
  std::vector<std::string> violations_;
  std::unique_ptr<GpuKernels> kernels_;
};

// Makes `gpu` the GPU of the process while this object lives. It must outlive all tensors and streams on the GPU.
class GpuInUse {
 public:
  explicit GpuInUse(Gpu& gpu) { use_gpu(&gpu); }
  ~GpuInUse() { use_gpu(nullptr); }
  GpuInUse(const GpuInUse&) = delete;
  GpuInUse& operator=(const GpuInUse&) = delete;
};

}  // namespace stretto
