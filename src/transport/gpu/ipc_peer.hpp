#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>

#include "transport/link.hpp"

namespace stretto {

// How many blocks of its GPU's memory a member has for each other member, and of what size; the same on all members.
struct IpcBlocks {
  std::size_t number = 4;
  std::size_t bytes = std::size_t{4} << 20;
  std::size_t of_one_peer() const { return number * bytes; }
};

// The blocks that one rank and a peer have for each other, and what they tell each other about them. Each fills its own,
// one after the other in a circle, and copies from the peer's in that order; so they are counted and need no names: a note
// over their link says that one more is full, or that one more is free again. Notes are of one size and say which of the two
// they mean; so a peer's data and its acknowledgements of ours share a link, and are never mixed up.
//
// One thread at a time. Nothing here waits.
class IpcPeer {
 public:
  // The link carries nothing else.
  IpcPeer(Link& link, std::byte* own_blocks, const std::byte* peers_blocks, const IpcBlocks& blocks);
  ~IpcPeer();
  IpcPeer(const IpcPeer&) = delete;
  IpcPeer& operator=(const IpcPeer&) = delete;

  // Sends and receives notes; true if there were any.
  bool progress();
  bool has_told_all() const { return to_tell_.empty(); }

  // Our next block, to be filled; null: the peer still has to copy from it.
  std::byte* take_own();
  // The oldest one taken, of which that is not said yet, is full.
  void say_full(std::size_t bytes);
  bool has_been_emptied() const { return taken_ == emptied_; }  // all that were ever taken

  // The peer's next full block, to be copied from; no memory: there is none yet.
  struct Full {
    const std::byte* memory = nullptr;
    std::size_t bytes = 0;
  };
  Full take_full();
  // The oldest one taken, of which that is not said yet, may be filled again.
  void say_empty() { tell({Note::empty, 0}); }

 private:
  struct Note {
    enum Meaning : std::uint32_t { full = 1, empty = 2 };
    std::uint32_t meaning = 0;
    std::uint32_t bytes = 0;
  };
  void tell(const Note& note);
  void hear(const Note& note);
  void listen();

  Link& link_;
  std::byte* const own_;
  const std::byte* const peers_;
  const IpcBlocks blocks_;
  std::uint64_t taken_ = 0, emptied_ = 0;  // of ours
  std::uint64_t copied_ = 0;               // of the peer's, or being copied
  std::deque<std::size_t> full_;           // of the peer's, the bytes in each that nobody copies yet
  std::deque<Note> to_tell_;
  Transfer telling_ = {};  // the first of these
  Note heard_ = {};
  Transfer hearing_ = {};
};

}  // namespace stretto
