#pragma once
#include <cstddef>
#include <cstdint>

#include "device/heap.hpp"

// How a rank reaches the buffers of another rank of its host.
namespace stretto {

// Where a buffer lies, as its owner tells the others.
struct Place {
  static constexpr std::uint64_t no_heap = ~std::uint64_t{0};
  std::uint64_t address = 0;       // in the owner's process
  std::uint64_t in_heap = no_heap;  // offset in the heap of the owner's process
};
Place place_of(const void* pointer);

// The memory of one peer. Used by one thread at a time for each communicator; safe from several.
class PeerMemory {
 public:
  // heap: as the peer announced it. rank: for sentences.
  PeerMemory(const HeapAddress& heap, int rank);
  ~PeerMemory();
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  // Whether loads and stores reach it: a rank of this process, or a place in the peer's heap.
  bool maps(const Place& place) const { return same_process_ || place.in_heap != Place::no_heap; }
  // Such a place in our addresses; valid as long as the peer keeps the block. The first look at a part of the heap maps it.
  std::byte* at(const Place& place, std::size_t bytes);
  // Copies from any place there: what is not mapped is read through the kernel (process_vm_readv). Throws
  // Error(unavailable) where the kernel refuses.
  void read(const Place& place, std::size_t offset, void* to, std::size_t bytes);
  // Whether the kernel lets this process read the other's memory.
  bool readable() const { return same_process_ || readable_; }

 private:
  bool same_process_ = false;
  bool readable_ = false;
};

}  // namespace stretto
