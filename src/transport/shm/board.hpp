#pragma once
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "transport/shm/one_word.hpp"
#include "transport/shm/segment.hpp"

namespace stretto {

// What the members of a communicator on one host tell each other. Each member posts, over and over, into slots that
// only it writes and all others read: a number and what comes with it, in one cache line where that fits. All members post
// equally often, and read each other's k-th posts after their own k-th and before the next: so a slot is free again when
// everybody has posted once more. No read-modify-write, no lock; a post costs the cache lines that change cores.
class Board {
 public:
  static constexpr std::size_t line_room = 56;      // bytes that travel in the line of the number
  static constexpr std::size_t small_room = 2048;   // of any other post that is kept as long as those
  static constexpr std::size_t room_bytes = 16384;  // of the largest post
  // How many posts are kept: a member that waits for no others, as the root of a broadcast, can be so far ahead.
  static constexpr std::uint64_t slots = 16;
  static constexpr std::uint64_t large_slots = 4;
  static std::size_t footprint();  // of one member

  struct Member {
    const Segment* own = nullptr;  // of this rank ...
    std::shared_ptr<PeerSegment> peer;
    std::size_t offset = 0;  // in the segment
  };
  Board(const std::vector<Member>& members, int rank);

  // Whether everybody has read what lies in the slot of the next post. Only who did not read the others' last posts has to
  // wait for that; it then waits until half the slots are free, since each look takes a line from whoever writes it.
  bool may_post(std::size_t bytes);
  // Where the bytes of the next post go: up to room_bytes.
  std::byte* draft(std::size_t bytes) { return room(rank_, posted_ + 1, bytes); }
  void post() {
    const std::uint64_t number = ++posted_;
    words_[rank_].published();
    line(rank_, number).number.store(number, std::memory_order_release);
    for (Bell* bell : bells_) bell->ring();
  }
  // What came with a member's post of the same number as our last one; null while that is not there.
  const std::byte* seen(int member, std::size_t bytes) {
    const std::uint64_t number = posted_;
    if (line(member, number).number.load(std::memory_order_acquire) < number) return nullptr;
    words_[member].seen();
    return room(member, number, bytes);
  }
  // For whoever only reads what that member posts, and may be behind: begins to fetch the next post if it is there, while
  // the caller does something else. Where it is not, that memory is left to its writer.
  void fetch_ahead(int member, std::size_t bytes);
  // Says that seen() has found all members' posts, which spares may_post() its looks.
  void saw_all() { all_reached_ = posted_; }

  // Those of whom may_post() still waits.
  std::vector<int> behind(std::size_t bytes);
  // After an error: this rank does nothing more with the others' memory; and whether that goes for all.
  void give_up() {
    words_[rank_].published();
    members_[rank_]->gave_up.store(1, std::memory_order_release);
  }
  bool all_gave_up() const;

  // How many members have left, counted in the memory of one. Whoever leaves, board open or not, counts itself in
  // everybody's memory and touches that no more: the owner may give it back when the count is full, and nobody else's
  // depends on it.
  class Leavers {
   public:
    Leavers(int file, std::size_t offset);
    void add_one();
    std::size_t count() const;

   private:
    Mapping memory_;
  };

 private:
  struct Line {
    alignas(128) std::atomic<std::uint64_t> number;  // a pair of cache lines: they are fetched together
    std::byte inside[line_room];
  };
  struct Slots {  // one member's
    std::array<Line, slots> lines;
    std::atomic<std::uint32_t> left;
    std::atomic<std::uint32_t> gave_up;
  };
  Line& line(int member, std::uint64_t number) { return members_[member]->lines[number % slots]; }
  std::byte* room(int member, std::uint64_t number, std::size_t bytes);
  // How often all must have posted before the next post of so many bytes; 0 where it is known that they have.
  std::uint64_t needed_for(std::size_t bytes) const;

  int rank_;
  std::uint64_t posted_ = 0;
  std::uint64_t all_reached_ = 0;  // everybody has posted as often, for all that we know
  std::vector<Slots*> members_;
  std::vector<OneWord> words_;  // one for all that a member says
  std::vector<Bell*> bells_;    // of the others
  std::vector<std::shared_ptr<PeerSegment>> peers_;
  std::vector<std::unique_ptr<Mapping>> memory_;
};

}  // namespace stretto
