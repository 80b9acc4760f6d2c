#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace stretto {

// Memory of this rank in the symmetric heap that the members of a communicator may still read when the rank's own operation
// is done, so that they need not signal that they have read. Parts take turns: two large ones, or as many small ones, up to
// 32, as take 1 MiB together (shm_link.cpp says why). A part is used again when all members have posted on the board after
// the operation that used it: then they have read it. To begin an operation, a rank thus waits only for the first posts of
// an earlier one, and no member makes those depend on a later operation: the oldest operation in flight always proceeds.
class KeptMemory {
 public:
  // The number of posts that every member must have made before next() may be called with as many bytes.
  std::uint64_t posts_needed(std::size_t bytes) const { return parts_[turn_of(bytes)].posts_needed; }
  // The part whose turn it is, of `bytes` bytes or more: the same block as last time if that is large enough.
  std::byte* next(std::size_t bytes);
  // Call it when the operation that uses the part is done. posts: this rank's posts by then.
  void keep(std::uint64_t posts) {
    parts_[turn_].posts_needed = posts + 1;
    ++turn_;
  }
  // Returns all memory. The caller must keep it until the members have left the communicator.
  std::vector<std::shared_ptr<std::byte>> release();

 private:
  struct Part {
    std::shared_ptr<std::byte> memory;
    std::size_t bytes = 0;
    std::uint64_t posts_needed = 0;
  };
  static constexpr std::size_t most_parts = 32;
  static constexpr std::size_t bytes_together = std::size_t{1} << 20;
  // Which part an operation takes: the next one, or the first if as many as its size allows have had their turn.
  std::size_t turn_of(std::size_t bytes) const {
    const std::size_t parts = std::clamp<std::size_t>(bytes_together / std::max<std::size_t>(bytes, 1), 2, most_parts);
    return turn_ < parts ? turn_ : 0;
  }
  std::array<Part, most_parts> parts_;
  std::size_t turn_ = 0;  // the next one
};

}  // namespace stretto
