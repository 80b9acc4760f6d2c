#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "carried.hpp"
#include "stretto/communicator.hpp"

namespace stretto::mpi_door {

class Served;

// One served collective call as data: the buffers of this rank, and the Stretto operation that serves the call. A task can
// be performed repeatedly, as persistent calls require.
struct Task {
  Call call;
  // True if only the ranks concerned know a count, as in MPI_Gatherv. No operation of all ranks can then serve the call: it
  // becomes sends and receives.
  bool is_messages = false;
  struct Message {
    bool sends;
    int peer;
    Carried carried;
  };
  std::vector<Message> messages;
  // If the ranks are on one host, `call` moves all messages of at most slot_bytes bytes, in a fraction of the time of single
  // messages. Every rank sends and receives a slot of this size for each other rank, whatever the messages' sizes: other
  // ranks do not know those. Two ranks know all messages, and choose the size by the largest. 0: no slots.
  std::int64_t slot_bytes = 0;
  std::unique_ptr<std::byte[]> given, got;
  // The data that this rank sends to itself, if is_messages.
  struct ToItself {
    Carried from, to;
  };
  std::vector<ToItself> to_itself;

  Carried input, output;

  // Sets `call` and slot_bytes for the messages, from and to all ranks (all_to_all), to the root (gather) or from it
  // (scatter).
  void use_slots(Collective collective, const Served& on, int root = 0);
  // MPI forbids buffers that overlap, but MPIs accept them, and so does this call: buffers that are written become copies.
  void keep_outputs_apart();

  // Called in this order. pack() and unpack() must run in one of the program's threads.
  void pack();
  Work start(const Communicator& communicator, const Stream& stream);
  void unpack();

 private:
  std::int64_t slot_of_two() const;
  static Work start(Message& message, const Communicator& communicator, const Stream& stream);
  bool fits_slot(const Message& message) const { return message.carried.bytes() <= slot_bytes; }
  std::byte* slot_of(const Message& message) const;
};

}  // namespace stretto::mpi_door
