#pragma once
#include <vector>

#include "carried.hpp"
#include "stretto/communicator.hpp"

namespace stretto::mpi_door {

// One served collective call as data: the buffers of this rank, and the Stretto operation that serves the call. A task can
// be performed repeatedly, as persistent calls require.
struct Task {
  Call call;
  // True if only the ranks concerned know a count, as in MPI_Gatherv. No operation of all ranks can then serve the call: it
  // becomes sends and receives, and `call` is ignored.
  bool is_messages = false;
  struct Message {
    bool sends;
    int peer;
    Carried carried;
  };
  std::vector<Message> messages;
  // The data that this rank sends to itself, if is_messages.
  struct ToItself {
    Carried from, to;
  };
  std::vector<ToItself> to_itself;

  Carried input, output;

  // Called in this order. pack() and unpack() must run in one of the program's threads.
  void pack();
  Work start(const Communicator& communicator, const Stream& stream);
  void unpack();
};

}  // namespace stretto::mpi_door
