#pragma once
#include <cstddef>
#include <deque>
#include <map>
#include <mutex>
#include <unordered_map>

namespace stretto {

// Host memory that plays a GPU's. Blocks are used again as late as possible and never returned to the system before the
// end: what reads memory that was released finds poison in it, or another's data, and does not crash.
class HostMemory {
 public:
  HostMemory() = default;
  ~HostMemory();
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  std::byte* take(std::size_t bytes);                   // aligned to 256 bytes
  std::size_t forget(std::byte* block);                 // no longer device memory; its bytes, 0 where it is none of these
  void give_back(std::byte* block, std::size_t bytes);  // may be taken again
  bool holds(const void* first, std::size_t bytes) const;
  std::size_t bytes_in_use() const;

  // As floating point NaN, as integers -1.
  static void poison(std::byte* block, std::size_t bytes);

 private:
  mutable std::mutex mutex_;
  std::map<const std::byte*, std::size_t> in_use_;
  std::unordered_map<std::size_t, std::deque<std::byte*>> unused_;  // by their sizes
};

}  // namespace stretto
