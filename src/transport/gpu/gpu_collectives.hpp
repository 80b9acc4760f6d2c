#pragma once
#include <cstddef>
#include <cstdint>

#include "device/gpu.hpp"
#include "stretto/plan.hpp"

namespace stretto {

class Links;

// A collective with equal shares, without quantization and without a factor.
struct GpuCollective {
  Collective collective = Collective::all_reduce;
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  std::int64_t count = 0;  // as in PlanRequest
  DType dtype = DType::f32;
  ReduceOp op = ReduceOp::sum;
  int root = 0;
};

// Collectives that the links between GPUs perform as one operation, with steps of their own instead of a plan's. All members
// call in the same order, one thread at a time.
class GpuCollectives {
 public:
  virtual ~GpuCollectives() = default;
  // Whether these links perform such a collective; the same answer on all members.
  virtual bool does(const GpuCollective& call) const = 0;
  // Enqueues the collective on the stream and returns.
  virtual void perform(const GpuCollective& call, GpuStream stream) = 0;
};

// For a communicator whose links between GPUs do not exist yet. may_be_done_whole(): whether links that have GpuCollectives
// may perform `call`. expects_gpu_collectives(): whether these members' links will probably have GpuCollectives; true
// between processes if this build has NCCL.
bool may_be_done_whole(const GpuCollective& call);
bool expects_gpu_collectives(const Links& links);

}  // namespace stretto
