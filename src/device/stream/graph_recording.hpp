#pragma once
#include <atomic>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "device/gpu.hpp"
#include "device/stream/stream_queue.hpp"

namespace stretto {

// The memory of tensors that are made while a graph is recorded. Each launch uses the same addresses, so the graph owns the
// memory as long as the graph or such a tensor exists. Blocks that are given back during the recording are used again by the
// same stream, in whose order the later use follows. The memory is allocated outside the graph: memory that a graph
// allocates itself must be released before the next launch.
class GraphMemory : public std::enable_shared_from_this<GraphMemory> {
 public:
  explicit GraphMemory(Gpu& gpu);
  ~GraphMemory();
  GraphMemory(const GraphMemory&) = delete;
  GraphMemory& operator=(const GraphMemory&) = delete;

  std::shared_ptr<std::byte> allocate(std::size_t bytes, GpuStream user);
  // For memory from outside the graph whose last owner ends during the recording: the graph may still use it.
  void take_over(std::byte* block, std::shared_ptr<GpuStreamHandle> stream);
  void wait_until_allocated();

 private:
  using Kind = std::pair<GpuStream, std::size_t>;  // its last user, and its size
  void give_back(std::byte* block, Kind kind);

  Gpu& gpu_;
  GpuStream stream_;
  std::mutex mutex_;
  std::vector<std::byte*> blocks_;
  std::multimap<Kind, std::byte*> unused_;
  std::vector<std::pair<std::byte*, std::shared_ptr<GpuStreamHandle>>> taken_over_;
};

struct GraphRecording {
  std::shared_ptr<GraphMemory> memory;
  std::vector<std::shared_ptr<Work::State>> works;  // part of the graph
  // Functions to call for each launch before it is put into its stream, by their owner (one for each); the graph keeps them.
  std::map<const void*, std::function<void(const Work& launch)>> before_launch;
  std::shared_ptr<std::atomic<bool>> over = std::make_shared<std::atomic<bool>>(false);
};

// The recording of this thread, or null. A thread that records must neither query the GPU nor wait: CUDA would invalidate
// the graph.
[[gnu::tls_model("initial-exec")]] inline constinit thread_local GraphRecording* recording = nullptr;

}  // namespace stretto
