#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

#include "device/memory/memory.hpp"

// The symmetric heap of this process: an anonymous file (memfd) that is mapped at one contiguous range of addresses, so that
// one subtraction turns an address into its offset in the file. Peers map the file (transport/shm/peer_memory.hpp).
namespace stretto {

struct HeapAddress {  // a peer opens the heap by it
  std::int64_t pid = 0;
  std::int64_t file = 0;
  std::uint64_t reserved = 0;  // size of the address range; the file never grows beyond it
  std::uint64_t base = 0;      // address of the heap in its own process
  std::uint64_t check = 0;     // also stored at the beginning of the file, where the peer must find the same value
};

// Maps such a file as a whole, at a multiple of huge_page. The mapping extends beyond the end of the file, so that pages by
// which the file grows later are mapped without another call. The mapping is excluded from core dumps.
std::byte* map_heap_file(int file, std::uint64_t reserved);

class Heap final : private Pool {
 public:
  // The heap of this process, created at the first call. A fork()ed child gets a heap of its own; it may use and give back
  // blocks that it has inherited, without effect on the parent.
  static Heap& mine() {
    Heap* const heap = mine_.load(std::memory_order_acquire);
    return heap != nullptr ? *heap : make_mine();
  }

  // Commits the pages of the block, so that a machine without memory throws here. Throws Error(unavailable).
  std::shared_ptr<std::byte> allocate(std::size_t bytes);
  // The pointer's offset in the file; nullopt outside the heap. Costs a comparison and a subtraction, since every operation
  // asks.
  std::optional<std::uint64_t> offset_of(const void* pointer) const {
    const std::uint64_t offset = reinterpret_cast<std::uintptr_t>(pointer) - base_;
    return offset < reserved_ ? std::optional(offset) : std::nullopt;
  }
  HeapAddress address() const;

 private:
  Heap();
  static Heap& make_mine();
  static void before_fork();
  static void after_fork_in_parent();
  static void after_fork_in_child();

  std::byte* fresh(std::size_t bytes) override;
  void discard(std::byte* block, std::size_t bytes) override;

  static inline std::atomic<Heap*> mine_ = nullptr;
  static inline std::mutex making_;
  std::uintptr_t base_ = 0;
  std::uint64_t reserved_ = 0;
  int file_ = -1;
  std::uint64_t check_ = 0;
  std::size_t end_ = 0;        // end of the last block
  std::size_t committed_ = 0;  // pages of the file are committed up to here, except gaps that align blocks
};

}  // namespace stretto
