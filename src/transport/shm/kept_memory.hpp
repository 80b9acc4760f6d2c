#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace stretto {

// Memory of this rank in the symmetric heap that the members of a communicator read, even when the rank's own operation is
// done. So an operation needs no signal that all have read. Two parts take turns. A part is given out again when all members
// have posted on the board after the operation that used it: then they have read it. So to begin an operation, a rank waits
// only for first posts of an earlier one, and nobody waits for a later operation to give those: the oldest operation that is
// not done always proceeds.
class KeptMemory {
 public:
  // How often every member must have posted before next() may be called.
  std::uint64_t posts_needed() const { return parts_[turn_].posts_needed; }
  // The part whose turn it is, at least so many bytes. It is what it was last time if that is large enough.
  std::byte* next(std::size_t bytes);
  // The operation that uses the part is done, after so many posts of this rank.
  void keep(std::uint64_t posts) {
    parts_[turn_].posts_needed = posts + 1;
    turn_ = 1 - turn_;
  }
  // Gives up all memory, which must live until the members have left the communicator.
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
