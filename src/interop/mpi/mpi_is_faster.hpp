#pragma once
#include "calls.hpp"
#include "stretto/communicator.hpp"

// The door forwards these non-blocking calls, because the MPI does them faster.
//
// A served non-blocking call wakes a thread on every rank, which takes tens of microseconds, and the calls of a communicator
// run one after another. The MPI needs no thread and progresses all calls in flight together, so it is faster until the
// bytes take longer than that.
//
// The answers are the same on all ranks. They depend on the kind of the call, and on the bytes of its type signature where
// MPI requires these to be equal.
namespace stretto::mpi_door {

// Whether the door serves non-blocking calls of this kind at any size.
bool is_served_without_blocking(Kind kind);
// Whether the call, which is of such a kind, is too small. ranks: of its communicator.
bool mpi_is_faster(const Call& call, int ranks);

}  // namespace stretto::mpi_door
