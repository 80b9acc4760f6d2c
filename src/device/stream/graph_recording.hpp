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

// The memory of tensors that are made while a graph is recorded: each launch uses the same addresses, so it stays the
// graph's as long as anybody has the graph or such a tensor. What goes back while the graph is recorded is used again by
// the same stream, which comes to it later. It is allocated outside of the graph: what a graph allocates itself would have
// to be released before its next launch.
class GraphMemory : public std::enable_shared_from_this<GraphMemory> {
 public:
  explicit GraphMemory(Gpu& gpu);
  ~GraphMemory();
  GraphMemory(const GraphMemory&) = delete;
  GraphMemory& operator=(const GraphMemory&) = delete;

  std::shared_ptr<std::byte> allocate(std::size_t bytes, GpuStream user);
  // From outside, whose last owner went while the graph was recorded: the graph may use it.
  void take_over(std::byte* block, std::shared_ptr<GpuStreamHandle> stream);
  void wait_until_allocated();

 private:
  using Kind = std::pair<GpuStream, std::size_t>;  // who used it, and its size
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
  std::vector<std::shared_ptr<Work::State>> works;  // that are part of it
  // What is told of each launch before it is put into its stream, by whom (each once); the graph keeps it.
  std::map<const void*, std::function<void(const Work& launch)>> before_launch;
  std::shared_ptr<std::atomic<bool>> over = std::make_shared<std::atomic<bool>>(false);
};

// What this thread records; null: nothing. Then it may ask the GPU for nothing and wait for nothing: CUDA would spoil the
// graph.
[[gnu::tls_model("initial-exec")]] inline constinit thread_local GraphRecording* recording = nullptr;

}  // namespace stretto
