#pragma once
#include <vector>

#include "collectives/execution/execution.hpp"
#include "collectives/execution/shared_memory.hpp"

namespace stretto {

// The way in which the ranks of a call learn whether all buffers are in memory that the others can map.
enum class Announcement : std::uint8_t {
  none,       // They need not know.
  exchanged,  // A BufferExchange of the call has just finished. It replaces the first signal, unless that tells more.
  with_first_signal,  // See SharedMemoryRun::announces().
};

// One plan in flight whose ranks reach each other's memory: they signal, wait, and read and write in the others' buffers.
class SharedMemoryRun {
 public:
  // Whether this rank runs the call's ordinary plan without a BufferExchange, because it knows that not all buffers can be
  // mapped: its own cannot. Its first signal is two posts at once: one for the exchange of the ranks that do not know, and
  // the first signal, for which those wait after the exchange.
  static bool announces(const Execution& execution);

  // execution and variant must outlive this object.
  SharedMemoryRun(const Execution& execution, const PlanVariant& variant, Announcement announcement);
  ~SharedMemoryRun();  // if unfinished: waits until the others have given up, too
  SharedMemoryRun(const SharedMemoryRun&) = delete;
  SharedMemoryRun& operator=(const SharedMemoryRun&) = delete;

  bool advance();  // never waits; returns true if anything moved
  bool finished() const { return finished_; }
  std::vector<int> awaited() const;

 private:
  bool begin();
  bool perform(const Step& step);
  bool signal();
  bool wait(int peer);
  void read(const Step& step);
  void read_reduce(const Step& step);
  void copy_to_all(const Step& step);
  void reduce_in_pieces(const Step& step);
  void check_symmetric();
  bool streams(const Step& step) const;
  const std::byte* reach(int member, const Slice& slice) const;
  BufferPlace place_in_member(int member, Buffer buffer) const;
  std::byte* own(const Slice& slice) const;
  std::size_t bytes(const Slice& slice) const { return static_cast<std::size_t>(slice.count) * width_; }

  const PlanRequest& request_;
  const CallBuffers& caller_;
  DType wire_;
  SharedMemory& shared_;
  Board& board_;
  WireBuffers buffers_;
  std::size_t width_;
  const Step* step_ = nullptr;
  const Step* end_ = nullptr;
  std::byte* scratch_ = nullptr;
  std::size_t kept_bytes_ = 0;    // of scratch in the communicator's kept memory
  std::size_t packet_bytes_ = 0;  // 0: no packet
  std::size_t post_bytes_;
  int heard_ = 0;            // members heard since the last signal
  bool only_hears_ = false;  // only receives packets from the root, which may be ahead
  bool begun_ = false;
  Announcement announcement_;
  int posts_;  // of the next signal
  bool signaled_ = false;
  bool finished_ = false;
};

}  // namespace stretto
