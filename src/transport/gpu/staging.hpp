#pragma once
#include <memory>

#include "transport/gpu/gpu_links.hpp"
#include "transport/gpu/side_copies.hpp"

namespace stretto {

// One message between a GPU's memory and a peer, on its way in blocks. Both ends cut it alike.
class StagedMessage {
 public:
  virtual ~StagedMessage() = default;  // what is unfinished is given up, and with it whatever else that peer was to get
  // Moves what can be moved without waiting; true if that was anything.
  virtual bool advance() = 0;
  virtual bool complete() const = 0;  // nothing of it needs the message's memory any more
  virtual bool waits_for_gpu() const = 0;
};

// Where the blocks of one communicator lie, and how they get from a member to another: through the host's memory
// (host_staging.hpp), or through memory of a GPU that both ends reach (ipc_staging.hpp). One thread at a time.
class Staging {
 public:
  virtual ~Staging() = default;  // when all messages are gone
  virtual const char* route() const = 0;
  virtual const char* means() const = 0;  // for sentences: "by ..."
  // The next message to, or from, that peer: the one before is complete.
  virtual std::unique_ptr<StagedMessage> begin(const GpuMessage& message, SideCopies& copies) = 0;
  // In the end: whether no peer needs anything of this any more. Never waits.
  virtual bool settled() = 0;
};

}  // namespace stretto
