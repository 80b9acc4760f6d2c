#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

#include "device/memory/memory.hpp"

// The symmetric heap of this process: an anonymous file (memfd) that is mapped at one stretch of addresses, so that an
// address tells its offset in the file by one subtraction. Peers map the file, see transport/shm/peer_memory.hpp.
namespace stretto {

struct HeapAddress {  // what a peer needs to open it
  std::int64_t pid = 0;
  std::int64_t file = 0;
  std::uint64_t reserved = 0;  // bytes of addresses, which the file never outgrows
  std::uint64_t base = 0;      // where it lies in its process
  std::uint64_t check = 0;     // must be found at the beginning of the file, and there
};

// Maps such a file as a whole, at a multiple of huge_page. The mapping reaches behind the file's end: what the file grows
// into later is there without another call. Not part of core dumps.
std::byte* map_heap_file(int file, std::uint64_t reserved);

class Heap final : private Pool {
 public:
  // Of this process; made when first asked for. A fork()ed child gets another one; blocks that it inherited it may use and
  // give back, which does nothing to its parent.
  static Heap& mine() {
    Heap* const heap = mine_.load(std::memory_order_acquire);
    return heap != nullptr ? *heap : make_mine();
  }

  // The pages of a block are committed first, so that a machine without memory says so here.
  std::shared_ptr<std::byte> allocate(std::size_t bytes);
  // Where it lies in the file; nothing outside the heap. A compare and a subtraction: every operation asks.
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
  std::size_t end_ = 0;        // of the last block
  std::size_t committed_ = 0;  // the file's pages up to here, but for what was skipped to align a block
};

}  // namespace stretto
