#pragma once
#include <vector>

#include "carried.hpp"
#include "stretto/communicator.hpp"

namespace stretto::mpi_door {

// One served collective call as data: what a rank gives, what it gets, and which of Stretto's operations does that. It can
// be performed again and again, which is what persistent calls do.
struct Task {
  Call call;
  // Where counts are known to the ranks that they concern only, no operation of all ranks can be asked for: then it is sends
  // and receives, and the call above counts for nothing.
  bool is_messages = false;
  struct Message {
    bool sends;
    int peer;
    Carried carried;
  };
  std::vector<Message> messages;
  // What this rank gives itself then.
  struct ToItself {
    Carried from, to;
  };
  std::vector<ToItself> to_itself;

  Carried input, output;

  // In this order, the outer two in threads of the program's.
  void pack();
  Work start(const Communicator& communicator, const Stream& stream);
  void unpack();
};

}  // namespace stretto::mpi_door
