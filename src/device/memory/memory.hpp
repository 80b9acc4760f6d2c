#pragma once
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "stretto/stream.hpp"

namespace stretto {

constexpr std::size_t block_alignment = 64;
constexpr std::size_t huge_page = std::size_t{2} << 20;

// Blocks of one kind of memory. Those that were given back are handed out again: fresh pages cost a fault each, and a
// training step asks for the same sizes again and again. Safe from any thread. Never destroyed: tensors in static storage
// may outlive any order of destruction.
class Pool {
 public:
  // The block returns to the pool with its last owner.
  std::shared_ptr<std::byte> allocate(std::size_t bytes);

 protected:
  Pool() = default;
  ~Pool() = default;
  std::mutex& mutex() { return mutex_; }

 private:
  // A new block, aligned to 64 bytes and from huge_page on to that; called with the mutex held. discard() ends a block for
  // good, which only happens where a sanitizer shall see what is used after the end of its life.
  virtual std::byte* fresh(std::size_t bytes) = 0;
  virtual void discard(std::byte* block, std::size_t bytes) = 0;

  std::byte* take(std::size_t bytes);
  void give_back(std::byte* block, std::size_t bytes);

  std::mutex mutex_;
  std::unordered_map<std::size_t, std::vector<std::byte*>> free_;
};

// What memory_use() says, of memory that no pool hands out.
void count_memory(std::size_t bytes, Device device);
void count_memory_gone(std::size_t bytes, Device device);

// A GPU's, as tensors get it: from here in computation() on, and for that stream; released in its order. While a graph is
// recorded it is the graph's, and stays at its place.
std::shared_ptr<std::byte> gpu_allocate(std::size_t bytes);

// Memory of this process alone.
std::shared_ptr<std::byte> pool_allocate(std::size_t bytes);

}  // namespace stretto
