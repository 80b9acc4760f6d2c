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
  std::byte* data = nullptr;  // a send only reads it
  std::size_t bytes = 0;
  int peer = 0;  // member
};

// Moves bytes between the GPUs of one communicator's members. With NCCL, exchange() enqueues work on the stream and returns;
// with all other links it returns when the peers have called it, too. All members call in the same order, one thread at a
// time; other threads may call failure() and abort() at any time.
class GpuLinks {
 public:
  virtual ~GpuLinks() = default;
  virtual const char* route() const = 0;  // "nccl", "peer copies", "ipc", "staged"

  // All messages make progress together, and the stream continues when all are done. Messages between two members match in
  // the order of the exchanges and, within one exchange, in the order of the list.
  virtual void exchange(const std::vector<GpuMessage>& messages, GpuStream stream) = 0;

  // The collectives that these links perform as one operation, faster than a plan; null if they only exchange messages.
  virtual GpuCollectives* collectives() { return nullptr; }

  // The first error since these links were made, in one sentence; empty if there was none.
  virtual std::string failure() = 0;
  // Ends the operations in flight, so that streams continue; every later exchange fails.
  virtual void abort() = 0;
};

// Collective: sends this member's bytes to all, and returns each member's, by member.
using ExchangeBytes = std::function<std::vector<Bytes>(const Bytes& mine)>;

// Collective over the members. Chooses NCCL if each member has a GPU of its own; copies if the members are threads of one
// process; CUDA IPC if they share a host and can all open each other's memory; otherwise staging in the host's memory.
// STRETTO_GPU_TRANSPORT overrides this choice. `links` must outlive the returned object.
std::unique_ptr<GpuLinks> make_gpu_links(Links& links, Gpu& gpu, const ExchangeBytes& exchange_bytes);

}  // namespace stretto
