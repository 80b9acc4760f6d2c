#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>

#include "device/memory/heap.hpp"

// How a rank reaches the buffers of another rank of its host.
namespace stretto {

// Where a buffer lies, as its owner tells the others.
struct Place {
  static constexpr std::uint64_t no_heap = ~std::uint64_t{0};
  std::uint64_t address = 0;        // in the owner's process
  std::uint64_t in_heap = no_heap;  // offset in the heap of the owner's process
};
inline Place place_of(const void* pointer) {
  return {reinterpret_cast<std::uintptr_t>(pointer), Heap::mine().offset_of(pointer).value_or(Place::no_heap)};
}

// The memory of one peer. Safe from several threads.
class PeerMemory {
 public:
  // heap: as the peer announced it. rank: for sentences.
  PeerMemory(const HeapAddress& heap, int rank);
  ~PeerMemory();
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  // Whether loads and stores reach it: a rank of this process, or a place in the peer's heap.
  bool maps(const Place& place) const { return same_process_ || place.in_heap != Place::no_heap; }
  // Such a place in our addresses; valid as long as the peer keeps the block, dead or alive.
  std::byte* at(const Place& place, std::size_t bytes) {
    if (same_process_) return reinterpret_cast<std::byte*>(place.address);
    const std::uint64_t known = known_.load(std::memory_order_acquire);
    if (place.in_heap > known || bytes > known - place.in_heap) look(place, bytes);
    return base_ + place.in_heap;
  }
  // Copies from offset on from any place there: what is not mapped is read through the kernel (process_vm_readv). Throws
  // Error(unavailable) where the kernel refuses, or the peer is dead.
  void read(const Place& place, std::size_t offset, void* to, std::size_t bytes);
  // Whether the kernel lets this process read the other's memory.
  bool readable() const { return same_process_ || readable_; }

 private:
  void look(const Place& place, std::size_t bytes);  // again at how long the file is; the first look maps it
  int read_through_kernel(std::uint64_t address, void* to, std::size_t bytes) const;  // gives an errno

  HeapAddress heap_;
  int rank_;
  bool same_process_ = false;
  bool readable_ = false;
  int file_ = -1;
  std::byte* base_ = nullptr;
  std::atomic<std::uint64_t> known_ = 0;  // bytes of the file that are known to be there, and mapped at base_
  std::mutex mutex_;
};

}  // namespace stretto
