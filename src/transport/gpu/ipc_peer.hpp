#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>

#include "transport/link.hpp"

namespace stretto {

// Number and size of the blocks of GPU memory that a member has for each other member; the same on all members.
struct IpcBlocks {
  std::size_t number = 4;
  std::size_t bytes = std::size_t{4} << 20;
  std::size_t of_one_peer() const { return number * bytes; }
};

// The blocks that one rank and a peer have for each other, and the notes that they send each other about them. Each rank
// fills its own blocks one after the other, in a circle, and copies from the peer's blocks in the same order. A note thus
// need not name a block: it says that one more block is full, or that one more is free again. All notes have one size and
// say which of the two they mean, so notes about both ranks' blocks share a link.
//
// Used by one thread at a time. Nothing here waits.
class IpcPeer {
 public:
  // The link must carry nothing else.
  IpcPeer(Link& link, std::byte* own_blocks, const std::byte* peers_blocks, const IpcBlocks& blocks);
  ~IpcPeer();
  IpcPeer(const IpcPeer&) = delete;
  IpcPeer& operator=(const IpcPeer&) = delete;

  // Sends and receives notes; returns true if there were any.
  bool progress();
  bool has_told_all() const { return to_tell_.empty(); }

  // This rank's next block, to be filled; null while the peer still has to copy from it.
  std::byte* take_own();
  // Tells the peer that the oldest block from take_own() of which it has not been told is full.
  void say_full(std::size_t bytes);
  bool has_been_emptied() const { return taken_ == emptied_; }  // the peer has emptied all blocks ever taken

  // The peer's next full block, to be copied from; its memory is null if there is none yet.
  struct Full {
    const std::byte* memory = nullptr;
    std::size_t bytes = 0;
  };
  Full take_full();
  // Tells the peer that the oldest block from take_full() of which it has not been told may be filled again.
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
  std::uint64_t taken_ = 0, emptied_ = 0;  // of this rank's blocks
  std::uint64_t copied_ = 0;               // of the peer's blocks, or being copied
  std::deque<std::size_t> full_;           // bytes in each full block of the peer that is not being copied yet
  std::deque<Note> to_tell_;
  Transfer telling_ = {};  // of the first note to tell
  Note heard_ = {};
  Transfer hearing_ = {};
};

}  // namespace stretto
