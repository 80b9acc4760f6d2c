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

// A stand-in for a GPU, of threads and host memory: whatever stands above the table of device/gpu.hpp runs over it, with the
// same results as on the host. It is stricter than a GPU: what CUDA leaves undefined is a violation here, and what nobody
// waited for comes out as wrong values.
namespace stretto {

struct HostGpuOptions {
  // Each stream sleeps up to so many microseconds before every other function, at random from this seed on: then waits that
  // are missing between streams show.
  int longest_delay_us = 0;
  std::uint64_t seed = 1;
  // For controls: streams do not wait for each other; and what is asked of an event is as if it had been reached.
  bool ignores_waits = false;
  bool foresees_events = false;
  bool cannot_open = false;  // other processes' memory, as CUDA in many a container
};

// Breaking a rule throws Error(internal) and is kept in violations(), where also those are that destructors commit:
// - While a graph is captured, the thread that began it asks no event for anything, waits for nothing, and copies nothing
//   between ordinary host memory and the GPU. Nobody asks an event that was recorded in a capture.
// - A capture is ended by the thread and in the stream that began it, which by then has waited for every stream that took
//   part. Captured streams wait for nothing that was recorded outside, and no other stream for what was recorded inside.
// - In a captured stream nothing is allocated or released. (CUDA can, but then the graph can only be launched again after
//   somebody has released what it allocated.)
// - Handles are this GPU's and not destroyed yet; kernels, copies and zero() get its memory, not released yet.
// - Memory of other processes is opened from a handle of another process, and closed once; memory is released when nobody
//   has it open.
// - Streams wait for words in pinned memory only, outside of captures, and pinned memory stays until they have.
class HostGpu final : public Gpu {
 public:
  // kernels: others than HostKernels.
  explicit HostGpu(const HostGpuOptions& options = {}, std::unique_ptr<GpuKernels> kernels = nullptr);
  ~HostGpu() override;  // waits for all streams
  HostGpu(const HostGpu&) = delete;
  HostGpu& operator=(const HostGpu&) = delete;

  // ---- beyond the table
  // The function is called in its turn in the stream's thread, or becomes part of a graph and is called at each launch. It
  // may block for other streams and ranks. What it throws is the failure of the whole GPU.
  void put(GpuStream stream, std::function<void()> function);
  void require_memory(const char* who, const void* first, std::size_t bytes);  // of this GPU, or a violation
  // Or, where an event of this thread could not be waited for either, a violation.
  void wait_until_here(GpuStream stream, const char* who);
  std::vector<std::string> violations() const;
  std::string failure() const { return failure_->what(); }  // of what was put into streams; empty: none
  // How often this thread has put anything into a stream of any GPU: functions, records and waits.
  static std::uint64_t put_by_this_thread();
  std::size_t bytes_in_use() const { return memory_.bytes_in_use(); }
  std::size_t pinned_bytes_in_use() const { return pinned_.bytes_in_use(); }
  std::size_t shared_bytes_in_use() const { return sharing_.bytes_in_use(); }  // of its own, and opened ones
  std::size_t memories_open() const { return sharing_.opened(); }
  std::size_t streams_in_use() const;
  std::size_t events_in_use() const;

  // ---- the table
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
  void zero(void* memory, std::size_t bytes, GpuStream stream) override;
  void begin_capture(GpuStream stream) override;
  bool is_capturing(GpuStream stream) override;
  GpuGraph end_capture(GpuStream stream) override;
  void launch(GpuGraph graph, GpuStream stream) override;
  void destroy(GpuGraph graph) override;
  GpuKernels& kernels() override { return *kernels_; }

 private:
  // A handle is a number that is given once in a process: one that is gone, or another GPU's, is recognised.
  using Number = std::uintptr_t;
  using Functions = std::vector<std::function<void()>>;
  using Seen = std::map<Number, std::size_t>;  // of each stream of a capture, how far its work has been waited for
  struct Capture;
  struct Queue {
    std::shared_ptr<HostStream> stream;
    std::shared_ptr<Capture> capture;  // that it takes part in
  };
  struct Place {  // of an event: the latest record
    std::shared_ptr<Marker> marker;
    std::shared_ptr<Capture> capture;
    Seen seen;
  };
  struct Recorded {  // a graph
    std::shared_ptr<const Functions> functions;
    std::shared_ptr<Marker> last_launch;
  };

  bool is_here(const void* first, std::size_t bytes) const {
    return memory_.holds(first, bytes) || sharing_.holds(first, bytes);
  }
  [[noreturn]] void violate(const std::string& sentence);
  Queue& queue(GpuStream stream, const char* who);  // these, under the mutex
  Place& place(GpuEvent event, const char* who);
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
  std::unordered_map<Number, Place> places_;
  std::unordered_map<Number, Recorded> graphs_;
  std::set<std::thread::id> capturing_threads_;
  std::vector<std::shared_ptr<HostStream>> ending_;
  mutable std::mutex violations_mutex_;
  std::vector<std::string> violations_;
  std::unique_ptr<GpuKernels> kernels_;
};

// While it lives, this is the GPU of the process. Tensors and streams on it end before.
class GpuInUse {
 public:
  explicit GpuInUse(Gpu& gpu) { use_gpu(&gpu); }
  ~GpuInUse() { use_gpu(nullptr); }
  GpuInUse(const GpuInUse&) = delete;
  GpuInUse& operator=(const GpuInUse&) = delete;
};

}  // namespace stretto
