#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

// The symmetric heap of this process: an anonymous file (memfd) that is mapped at one stretch of reserved addresses, so that
// an address tells its offset in the file by one subtraction. Peers map the file, see transport/shm/peer_memory.hpp.
namespace stretto {

struct HeapAddress {  // what a peer needs to open it
  std::int64_t pid = 0;
  std::int64_t file = 0;
  std::uint64_t reserved = 0;  // bytes of addresses, which the file never outgrows
};

class Heap {
 public:
  // Of this process; made when first asked for, and never destroyed. A fork()ed child gets another one.
  static Heap& mine();

  // Blocks that were given back are handed out again; pages are committed first, so that a machine without memory says so
  // here.
  std::shared_ptr<std::byte> allocate(std::size_t bytes);
  // Where it lies in the file; nothing outside the heap. A compare and a subtraction: every operation asks.
  std::optional<std::uint64_t> offset_of(const void* pointer) const {
    const std::uint64_t offset = reinterpret_cast<std::uintptr_t>(pointer) - base_;
    return offset < reserved_ ? std::optional(offset) : std::nullopt;
  }
  HeapAddress address() const;

 private:
  std::uintptr_t base_ = 0;
  std::uint64_t reserved_ = 0;
};

}  // namespace stretto
