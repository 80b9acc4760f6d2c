#pragma once
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "device/gpu.hpp"
#include "transport/bootstrap/job.hpp"

namespace stretto {

class GpuCollectives;
class Links;

// A message between the memories of two members of a communicator.
struct GpuMessage {
  bool sends = false;
  std::byte* data = nullptr;  // of a send only read
  std::size_t bytes = 0;
  int peer = 0;  // member
};

// Moves bytes between the GPUs of one communicator's members. With NCCL, exchange() puts work into the stream and returns;
// all other links return when the peers have called it, too. All members call in the same order, one thread at a time;
// failure() and abort() may be called by other threads at any time.
class GpuLinks {
 public:
  virtual ~GpuLinks() = default;
  virtual const char* route() const = 0;  // "nccl", "peer copies", "ipc", "staged"

  // All messages make progress together, and the stream goes on when all are done. Messages between two members match in the
  // order of the exchanges and, within one exchange, of the list.
  virtual void exchange(const std::vector<GpuMessage>& messages, GpuStream stream) = 0;

  // Collectives that these links do whole, faster than a plan; null if they only exchange messages.
  virtual GpuCollectives* collectives() { return nullptr; }

  // The first error since these links were made, in one sentence; empty if there was none.
  virtual std::string failure() = 0;
  // Ends the operations under way, so that streams go on; nothing can be exchanged any more.
  virtual void abort() = 0;
};

// Collective: sends this member's bytes to all, and returns each member's, by member.
using ExchangeBytes = std::function<std::vector<Bytes>(const Bytes& mine)>;

// Collective over the members. Chooses NCCL if each member has a GPU of its own; copies if they are threads of one process;
// CUDA IPC if they share a host and could all open each other's memory; else staging in the host's memory; or what
// STRETTO_GPU_TRANSPORT says. `links` must outlive the returned object.
std::unique_ptr<GpuLinks> make_gpu_links(Links& links, Gpu& gpu, const ExchangeBytes& exchange_bytes);

}  // namespace stretto
