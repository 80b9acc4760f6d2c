#pragma once
#include <memory>

#include "transport/gpu/gpu_links.hpp"
#include "transport/gpu/side_copies.hpp"

namespace stretto {

// One message between a GPU's memory and a peer, on its way in blocks. Both ends cut it in the same way.
class StagedMessage {
 public:
  virtual ~StagedMessage() = default;  // gives up an unfinished message, and with it all later ones of that peer
  // Moves the bytes that can be moved without waiting; returns true if anything moved.
  virtual bool advance() = 0;
  virtual bool complete() const = 0;  // the message's memory is not needed any more
  virtual bool waits_for_gpu() const = 0;
};

// The blocks of one communicator, and their way from a member to another: through the host's memory (host_staging.hpp), or
// through memory of a GPU that both ends reach (ipc_staging.hpp). Used by one thread at a time.
class Staging {
 public:
  virtual ~Staging() = default;  // every StagedMessage must be destroyed before
  virtual const char* route() const = 0;
  virtual const char* means() const = 0;  // for error messages: "by ..."
  // Begins the next message to, or from, its peer; the one before must be complete.
  virtual std::unique_ptr<StagedMessage> begin(const GpuMessage& message, SideCopies& copies) = 0;
  // At the end: whether no peer uses this object's memory any more. Never waits.
  virtual bool settled() = 0;
};

}  // namespace stretto
