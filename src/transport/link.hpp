#pragma once
#include <cstddef>
#include <cstdint>

#include "stretto/dtype.hpp"

namespace stretto {

// A message on its way. The caller owns the buffers, which must stay valid until the transfer is complete or cancelled.
struct Transfer {
  const std::byte* source = nullptr;   // for a send; null for a receive
  std::byte* destination = nullptr;    // for a receive
  const std::byte* operand = nullptr;  // for a receive that reduces: destination = received op operand (may be destination)
  std::size_t bytes = 0;
  DType dtype = DType::f32;  // for the reduction
  ReduceOp op = ReduceOp::sum;
  std::int64_t divisor = 1;  // by which the reduced elements are divided
  bool background = false;   // a send that gives the network only little at a time, so that others can overtake it
  bool held = false;         // a send that hands nothing more to the network for now; bytes handed over go on

  std::size_t moved = 0;    // bytes that have arrived (receive) or left the source (send)
  std::size_t started = 0;  // bytes handed to the network; for the link's use
  bool complete() const { return moved == bytes; }
};

// Reduces arrived bytes into the destination, from byte `offset` on.
void reduce_arrived(const Transfer& transfer, const std::byte* arrived, std::size_t offset, std::size_t bytes);

// Both directions between this rank and one peer, for one lane of one communicator. Messages of one direction arrive in the
// order in which they were sent, and both ends agree on their sizes; so only the oldest transfer of each direction may be
// progressed. Used by one thread at a time.
class Link {
 public:
  virtual ~Link() = default;
  // Moves the bytes that can be moved without waiting; returns true if anything moved. Throws LinkBroken if the peer's end
  // is gone.
  virtual bool progress(Transfer& transfer) = 0;
  // Gives up an unfinished transfer, so that its buffers may be freed; the link is unusable afterwards.
  virtual void cancel(Transfer& transfer) = 0;
};

}  // namespace stretto
