#pragma once
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "stretto/stream.hpp"
#include "stretto/tensor.hpp"

namespace stretto {

constexpr std::size_t block_alignment = 64;
constexpr std::size_t huge_page = std::size_t{2} << 20;

// Blocks of one kind of memory. Blocks that were given back are reused: fresh pages cost a fault each, and a training step
// asks for the same sizes again and again. Thread-safe. Pools are never destroyed: tensors in static storage may be
// destroyed in any order.
class Pool {
 public:
  // The block returns to the pool with its last owner.
  std::shared_ptr<std::byte> allocate(std::size_t bytes);

 protected:
  Pool() = default;
  ~Pool() = default;
  std::mutex& mutex() { return mutex_; }

 private:
  // A new block, aligned to 64 bytes, or to huge_page if it is that large. Called with the mutex held. discard() frees a
  // block for good; only sanitizer builds call it, to detect uses after the end of a block's life.
  virtual std::byte* fresh(std::size_t bytes) = 0;
  virtual void discard(std::byte* block, std::size_t bytes) = 0;

  std::byte* take(std::size_t bytes);
  void give_back(std::byte* block, std::size_t bytes);

  std::mutex mutex_;
  std::unordered_map<std::size_t, std::vector<std::byte*>> free_;
};

// Bytes that memory_use() counts from add() to remove(), under the MemoryKind that the constructing thread has set.
class CountedBytes {
 public:
  CountedBytes(std::size_t bytes, Device device);
  void add() const;
  void remove() const;

 private:
  std::size_t bytes_;
  Device device_;
  MemoryKind kind_;
};

// GPU memory for tensors: usable in computation() from this call on, and released in the order of that stream. While a graph
// is recorded, the graph owns the memory, at a fixed address.
std::shared_ptr<std::byte> gpu_allocate(std::size_t bytes);

// Memory of this process alone.
std::shared_ptr<std::byte> pool_allocate(std::size_t bytes);

}  // namespace stretto
