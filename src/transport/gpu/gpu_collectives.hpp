#pragma once
#include <cstddef>
#include <cstdint>

#include "device/gpu.hpp"
#include "stretto/plan.hpp"

namespace stretto {

class Links;

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

// Collectives that the links between GPUs do whole, with steps of their own instead of a plan's. All members call in the
// same order, one thread at a time.
class GpuCollectives {
 public:
  virtual ~GpuCollectives() = default;
  // Whether these links do such a collective; the same answer on all members.
  virtual bool does(const GpuCollective& call) const = 0;
  // Puts it into the stream and returns.
  virtual void perform(const GpuCollective& call, GpuStream stream) = 0;
};

// While a communicator has no links between GPUs yet: whether such links may do the collective, if they do any whole; and
// whether the links of these members are expected to, which is so between processes if this build has NCCL.
bool may_be_done_whole(const GpuCollective& call);
bool expects_gpu_collectives(const Links& links);

}  // namespace stretto
