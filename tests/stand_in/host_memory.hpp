#pragma once
#include <cstddef>
#include <deque>
#include <map>
#include <mutex>
#include <unordered_map>

namespace stretto {

// Host memory that stands in for a GPU's. Blocks are reused as late as possible and returned to the system only at the end,
// so that code that reads released memory finds poison or another block's data instead of crashing.
class HostMemory {
 public:
  HostMemory() = default;
  ~HostMemory();
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  std::byte* take(std::size_t bytes);    // aligned to 256 bytes
  std::size_t forget(std::byte* block);  // the block is no device memory any more; its bytes, 0 if it was none
  void give_back(std::byte* block, std::size_t bytes);  // the block may be taken again
  bool holds(const void* first, std::size_t bytes) const;
  std::size_t bytes_in_use() const;

  // Floating-point elements become NaN, integers -1.
  static void poison(std::byte* block, std::size_t bytes);

 private:
  mutable std::mutex mutex_;
  std::map<const std::byte*, std::size_t> in_use_;
  std::unordered_map<std::size_t, std::deque<std::byte*>> unused_;  // by size
};

}  // namespace stretto
