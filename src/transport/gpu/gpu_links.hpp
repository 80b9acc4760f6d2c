#pragma once
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "device/gpu.hpp"
#include "stretto/plan.hpp"
#include "transport/bootstrap/job.hpp"

namespace stretto {

class Links;

// A message between the memories of two members of a communicator.
struct GpuMessage {
  bool sends = false;
  std::byte* data = nullptr;  // of a send only read
  std::size_t bytes = 0;
  int peer = 0;  // member
};

// A collective with nothing special about it: equal shares, no quantization, no factor.
struct GpuCollective {
  Collective collective = Collective::all_reduce;
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  std::int64_t count = 0;  // as in PlanRequest
  DType dtype = DType::f32;
  ReduceOp op = ReduceOp::sum;
  int root = 0;
};

// How the members of one communicator move bytes between GPUs' memory: what NCCL does, and copies do on one GPU. NCCL's
// calls put work into a stream and return; of the others an exchange returns when peers have called it, too. All members
// call in the same order; one thread at a time, but for failure() and abort(), which others may call beside it.
class GpuLinks {
 public:
  virtual ~GpuLinks() = default;
  virtual const char* route() const = 0;  // "nccl", "peer copies", "ipc", "staged"

  // All of them make progress together, and the stream goes on when all are done. Messages between two members match in the
  // order of the exchanges and, within one, of the list.
  virtual void exchange(const std::vector<GpuMessage>& messages, GpuStream stream) = 0;

  // Whether this route does such a collective by itself, better than a plan would; and that.
  virtual bool does(const GpuCollective& call) const = 0;
  virtual void perform(const GpuCollective& call, GpuStream stream) = 0;

  // What has gone wrong since, in one sentence; empty: nothing.
  virtual std::string failure() = 0;
  // Ends what is under way, so that streams go on; nothing can be exchanged any more.
  virtual void abort() = 0;
};

// What each member tells the others, by member.
using ExchangeBytes = std::function<std::vector<Bytes>(const Bytes& mine)>;

// Collective over the members: by NCCL where each has a GPU of its own, by copies where they are threads of one process, by
// CUDA's IPC where they share a host and all could open each other's memory, and else by way of the host's memory; or what
// STRETTO_GPU_TRANSPORT says. The links are for longer than what it gives.
std::unique_ptr<GpuLinks> make_gpu_links(Links& links, Gpu& gpu, const ExchangeBytes& exchange_bytes);

}  // namespace stretto
