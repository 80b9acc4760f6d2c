#pragma once
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "transport/shm/one_word.hpp"
#include "transport/shm/segment.hpp"

namespace stretto {

// Signals between the members of a communicator on one host. Each member posts, over and over, into slots that only it
// writes and all others read: a number and the bytes that come with it, in one cache line if they fit. All members post
// equally often, and read each other's k-th posts after their own k-th post and before their next one, or not at all: so a
// slot is free again when all members have posted once more. No read-modify-write, no lock; a post costs the cache lines
// that change cores.
class Board {
 public:
  static constexpr std::size_t line_room = 56;      // bytes that fit into the cache line of the number
  static constexpr std::size_t small_room = 2048;   // bytes of the largest post of which `slots` are kept
  static constexpr std::size_t room_bytes = 16384;  // bytes of the largest post
  // The number of posts that are kept: a member that waits for no others, like the root of a broadcast, can be this far
  // ahead.
  static constexpr std::uint64_t slots = 16;
  static constexpr std::uint64_t large_slots = 8;
  // Rooms of large posts take turns in more memory than a core's own cache holds: see shm_link.cpp.
  static constexpr std::uint64_t large_rooms = 64;
  static std::size_t footprint();  // bytes of one member

  struct Member {
    const Segment* own = nullptr;  // for this rank; for the others: peer
    std::shared_ptr<PeerSegment> peer;
    std::size_t offset = 0;  // in the segment
  };
  Board(const std::vector<Member>& members, int rank);

  // The posts from here on belong to an operation of this signature. Each carries the signature and its place among the
  // operation's posts, at no further cost.
  void begin(std::uint16_t signature) {
    signature_ = std::uint64_t{signature} << number_bits;
    first_ = posted_ + 1;
  }
  std::uint64_t first() const { return first_; }  // the number of the operation's first post
  // Whether a member's post of this number has the same place in an operation of the same signature; true if the post is not
  // there, or no longer.
  bool agrees(int member, std::uint64_t number) {
    const std::uint64_t last = line(member, number).number.load(std::memory_order_relaxed);
    return (last & number_mask) != number || last == marked(number);
  }
  // For operations that do not agree. tell() publishes, once, the text of this rank's operation. told_by() returns a
  // member's; nullopt until that has published it.
  void tell(const std::string& operation);
  std::optional<std::string> told_by(int member) const;

  // Whether all members have read the slots of the next `posts` posts. Only a member that did not read the others' last
  // posts has to wait for that; it then waits until half the slots are free, since each look takes a cache line from its
  // writer.
  bool may_post(std::size_t bytes, std::uint64_t posts = 1) {
    const std::uint64_t needed = needed_for(bytes, posts);
    return needed <= all_reached_ || all_posted(needed);
  }
  // Whether all members have made `number` posts, and so have left every operation before that post.
  bool all_posted(std::uint64_t number);
  std::uint64_t posted() const { return posted_; }
  // Returns where to write the bytes (at most room_bytes) of the next post, or of the `ahead`-th post from now.
  // Throws if the machine is out of memory.
  std::byte* draft(std::size_t bytes, std::uint64_t ahead = 1) {
    if (bytes > committed_) commit_rooms(bytes);
    return room(rank_, posted_ + ahead, bytes);
  }
  void post(std::uint64_t posts = 1) {
    words_[rank_].published();
    for (const std::uint64_t last = posted_ + posts; posted_ < last;) {
      const std::uint64_t number = ++posted_;
      line(rank_, number).number.store(marked(number), std::memory_order_release);
    }
    for (Bell* bell : bells_) bell->ring();
  }
  // The bytes of a member's post with the same number as this rank's last one; null while it is not there.
  const std::byte* seen(int member, std::size_t bytes) {
    const std::uint64_t number = posted_;
    if (line(member, number).posts() < number) return nullptr;
    words_[member].seen();
    return room(member, number, bytes);
  }
  // For a rank that only reads a member's posts, and may be behind: begins to fetch the next post if it is there, while the
  // caller does something else. If it is not there, its memory is left to the writer.
  void fetch_ahead(int member, std::size_t bytes);
  // Notes that seen() has found all members' posts, which spares may_post() its looks.
  void saw_all() { all_reached_ = posted_; }

  // The members for which may_post(), or all_posted(), waits.
  std::vector<int> behind(std::size_t bytes, std::uint64_t posts = 1) { return without_post(needed_for(bytes, posts)); }
  std::vector<int> without_post(std::uint64_t number);
  // After an error: give_up() announces that this rank no longer touches the others' memory; all_gave_up() returns whether
  // all members have announced it.
  void give_up() {
    words_[rank_].published();
    members_[rank_]->gave_up.store(1, std::memory_order_release);
  }
  bool all_gave_up() const;

 private:
  static constexpr std::size_t small_rooms = slots * small_room;
  static constexpr std::size_t all_rooms = small_rooms + large_rooms * room_bytes;
  static constexpr int number_bits = 48;  // enough for years of posts
  static constexpr std::uint64_t number_mask = (std::uint64_t{1} << number_bits) - 1;
  struct PostLine {
    // A pair of cache lines: they are fetched together. The upper bits are the sum of the operation's signature and the
    // post's place in it.
    alignas(128) std::atomic<std::uint64_t> number;
    std::byte inside[line_room];
    std::uint64_t posts() const { return number.load(std::memory_order_acquire) & number_mask; }
  };
  // One member's slots. They lie behind its rooms, so the file holds the rooms as soon as the slots are committed. A rank
  // whose call does not match may therefore read rooms that were never written: it finds zeros.
  struct Slots {
    std::array<PostLine, slots> lines;
    std::atomic<std::uint32_t> gave_up;
    std::atomic<std::uint32_t> told;
    std::array<char, 1024> operation;
  };
  std::uint64_t marked(std::uint64_t number) const { return number | (signature_ + ((number - first_) << number_bits)); }
  PostLine& line(int member, std::uint64_t number) { return members_[member]->lines[number % slots]; }
  std::byte* room(int member, std::uint64_t number, std::size_t bytes) {
    if (bytes <= line_room) return line(member, number).inside;
    std::byte* const rooms = reinterpret_cast<std::byte*>(members_[member]) - all_rooms;
    if (bytes <= small_room) return rooms + number % slots * small_room;
    return rooms + small_rooms + number % large_rooms * room_bytes;
  }
  void commit_rooms(std::size_t bytes);
  // The number of posts that all members must have made before this rank's next posts of this size; 0 if they have.
  std::uint64_t needed_for(std::size_t bytes, std::uint64_t posts) const {
    const std::uint64_t depth = bytes <= small_room ? slots : large_slots;
    const std::uint64_t last = posted_ + posts;
    // The slot holds this rank's post of that number less `depth`; a member that has posted after that has read it.
    return last < all_reached_ + depth ? 0 : last - depth / 2;
  }

  int rank_;
  int file_ = -1;                      // of this rank's own segment
  std::size_t offset_ = 0;             // in it
  std::size_t committed_ = line_room;  // bytes of the largest post for which this rank has memory
  std::uint64_t posted_ = 0;
  std::uint64_t signature_ = 0;  // shifted above the bits of the number
  std::uint64_t first_ = 1;
  std::uint64_t all_reached_ = 0;  // all members are known to have posted this often
  std::vector<Slots*> members_;
  std::vector<OneWord> words_;  // by member: one for all its posts
  std::vector<Bell*> bells_;    // of the others
  std::vector<std::shared_ptr<PeerSegment>> peers_;
  std::vector<std::unique_ptr<Mapping>> memory_;
};

}  // namespace stretto
