#pragma once
#include <cstddef>
#include <cstdint>

#include "stretto/dtype.hpp"

namespace stretto {

// A message on its way. The buffers belong to the caller and stay put until it is complete or cancelled.
struct Transfer {
  const std::byte* source = nullptr;   // of a send; null for a receive
  std::byte* destination = nullptr;    // of a receive
  const std::byte* operand = nullptr;  // of a receive that reduces: destination = received op operand (may be destination)
  std::size_t bytes = 0;
  DType dtype = DType::f32;  // for the reduction
  ReduceOp op = ReduceOp::sum;
  std::int64_t divisor = 1;  // of what has been reduced
  bool background = false;   // a send of which little is to be with the network: others will want to overtake it
  bool held = false;         // a send that hands nothing more to the network for now; what it has handed over goes on

  std::size_t moved = 0;    // bytes that have arrived (receive) or left the source (send)
  std::size_t started = 0;  // bytes handed to the network; the link's own
  bool complete() const { return moved == bytes; }
};

// Reduces bytes that have arrived into their place in the transfer, which begins that many bytes behind its start.
void reduce_arrived(const Transfer& transfer, const std::byte* arrived, std::size_t offset, std::size_t bytes);

// Both directions between this rank and one peer, for one lane of one communicator. Messages of one direction arrive in the
// order in which they were sent, and both ends agree on their sizes; so only the oldest transfer of each direction may be
// progressed. One thread at a time.
class Link {
 public:
  virtual ~Link() = default;
  // Moves what can be moved without waiting; true if that was anything. Throws Error(peer_lost) when the peer's end is gone.
  virtual bool progress(Transfer& transfer) = 0;
  // Gives up an unfinished transfer, so that its buffers may go; the link is unusable afterwards.
  virtual void cancel(Transfer& transfer) = 0;
};

}  // namespace stretto
