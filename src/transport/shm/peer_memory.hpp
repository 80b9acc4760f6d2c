#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>

#include "device/memory/heap.hpp"

// Access to the buffers of another rank of the host.
namespace stretto {

// The place of a buffer, as its owner sends it to the others.
struct BufferPlace {
  static constexpr std::uint64_t no_heap = ~std::uint64_t{0};
  std::uint64_t address = 0;        // in the owner's process
  std::uint64_t in_heap = no_heap;  // offset in the heap of the owner's process
};
inline BufferPlace buffer_place_of(const void* pointer) {
  return {reinterpret_cast<std::uintptr_t>(pointer), Heap::mine().offset_of(pointer).value_or(BufferPlace::no_heap)};
}

// The memory of one peer. Several threads may use it at the same time.
class PeerMemory {
 public:
  // heap: as the peer announced it. rank: the peer's in the job, for error messages.
  PeerMemory(const HeapAddress& heap, int rank);
  ~PeerMemory();
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  // Whether loads and stores reach the place: the peer is a thread of this process, or the place is in the peer's heap.
  bool maps(const BufferPlace& place) const { return same_process_ || place.in_heap != BufferPlace::no_heap; }
  // The address of such a place in this process; valid as long as the peer keeps the block, or forever if the peer is dead.
  std::byte* at(const BufferPlace& place, std::size_t bytes) {
    // NOLINTNEXTLINE(performance-no-int-to-ptr): an address that travelled
    if (same_process_) return reinterpret_cast<std::byte*>(place.address);
    const std::uint64_t known = known_.load(std::memory_order_acquire);
    if (place.in_heap > known || bytes > known - place.in_heap) look(place, bytes);
    return base_ + place.in_heap;
  }
  // Copies bytes from any place, beginning at offset: memory that is not mapped is read through the kernel
  // (process_vm_readv). Throws LinkBroken if the peer is dead or the bytes are not there, and Error(unavailable)
  // if the kernel does not let this process read them.
  void read(const BufferPlace& place, std::size_t offset, void* to, std::size_t bytes);
  // Whether the kernel lets this process read the other's memory.
  bool readable() const { return same_process_ || readable_; }

 private:
  void look(const BufferPlace& place, std::size_t bytes);  // asks again for the length of the file; the first look maps it
  int read_through_kernel(std::uint64_t address, void* to, std::size_t bytes) const;  // returns an errno

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
