#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace stretto {

// Memory of this rank in the symmetric heap that the members of a communicator may still read when the rank's own operation
// is done, so that they need not signal that they have read. Two parts take turns. A part is used again when all members
// have posted on the board after the operation that used it: then they have read it. To begin an operation, a rank thus
// waits only for the first posts of an earlier one, and no member makes those depend on a later operation: the oldest
// operation in flight always proceeds.
class KeptMemory {
 public:
  // The number of posts that every member must have made before next() may be called.
  std::uint64_t posts_needed() const { return parts_[turn_].posts_needed; }
  // The part whose turn it is, of `bytes` bytes or more: the same block as last time if that is large enough.
  std::byte* next(std::size_t bytes);
  // Call it when the operation that uses the part is done. posts: this rank's posts by then.
  void keep(std::uint64_t posts) {
    parts_[turn_].posts_needed = posts + 1;
    turn_ = 1 - turn_;
  }
  // Returns all memory. The caller must keep it until the members have left the communicator.
  std::vector<std::shared_ptr<std::byte>> release();

 private:
  struct Part {
    std::shared_ptr<std::byte> memory;
    std::size_t bytes = 0;
    std::uint64_t posts_needed = 0;
  };
  std::array<Part, 2> parts_;
  std::size_t turn_ = 0;
};

}  // namespace stretto
