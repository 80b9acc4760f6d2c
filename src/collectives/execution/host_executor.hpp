#pragma once
#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "collectives/communicator/call_check.hpp"
#include "collectives/communicator/fast_path_log.hpp"
#include "collectives/execution/wire_buffers.hpp"
#include "stretto/plan.hpp"
#include "transport/links.hpp"

namespace stretto {

class GpuLinks;
class SharedMemory;

// How one call is done.
struct PlanVariant {
  std::shared_ptr<const Plan> plan;
  DType wire = DType::f32;  // in which the plan runs: the call's type, or f32 where narrow floats are to be rounded once
  std::shared_ptr<const FastPathLog::Label> label;
  std::size_t packet_bytes = 0;  // by packet: the most that a rank puts into one
};
// How a call is done wherever its buffers lie, and how it is done where all ranks' buffers lie in memory that all reach.
struct PlannedCall {
  PlanVariant ordinary, symmetric;
  // Then the ranks tell each other first where their buffers are.
  bool depends_on_memory() const { return ordinary.plan != symmetric.plan; }
};

// STRETTO_CHECK: what is compared with the other ranks before a plan begins.
struct Checking {
  CallCheck* check = nullptr;
  CheckedCall checked;
  std::string communicator;
};

// Of a quantized call: how it rounds, and what it has left out so far, by hop; no elements where that is forgotten.
struct Quantizing {
  Rounding rounding = Rounding::nearest_even;
  std::uint64_t seed = 0;
  std::array<Tensor, hops> residuals;
};

// One rank's part in one collective: a plan and the buffers that it is about.
struct Execution {
  const Plan* plan = nullptr;
  WireBuffers::Caller caller;
  Links* links = nullptr;
  int first_lane = 0;  // of the links
  SharedMemory* shared = nullptr;
  GpuLinks* gpu_links = nullptr;  // where its buffers lie on GPUs
  std::size_t packet_bytes = 0;
  // Set: the plan is one of these, as the ranks' memory turns out; settled is told which.
  std::shared_ptr<const PlannedCall> choices = {};
  std::function<void(const PlanVariant&)> settled = {};
  std::shared_ptr<const Plan> own_plan = {};  // keeps a plan that nobody else does
  std::shared_ptr<const Checking> checking = {};
  std::shared_ptr<const Quantizing> quantizing = {};  // where the call is quantized
  Precedence::Operation* precedence = nullptr;        // none: it is not held, nor holds others

  void take(const PlanVariant& way) {
    plan = way.plan.get();
    caller.wire = way.wire;
    packet_bytes = way.packet_bytes;
  }
};

// A call's buffers and what is done with them, but for the type on the wire.
inline WireBuffers::Caller caller_of(const Call& call, double factor) {
  return {static_cast<const std::byte*>(call.input),
          static_cast<std::byte*>(call.output),
          call.dtype,
          call.dtype,
          reduces(call.collective) ? call.op : ReduceOp::sum,
          factor};
}

// In which two contributions combine.
inline ReduceOp combining(ReduceOp op) { return op == ReduceOp::avg || op == ReduceOp::premul_sum ? ReduceOp::sum : op; }

// Executions that follow each other.
using Sequence = std::vector<Execution>;

// Runs the sequences in the calling thread, all progressing together, until they are complete. Two of them must not use the
// same lane of the same links in the same direction. Throws Error(timeout) after STRETTO_TIMEOUT seconds in which nothing
// moved (describe says what it was, for the sentence), and what the job or a link throws when a peer is lost; no buffer is
// in use any more when it returns or throws. in_background: on a stream's thread, beside this rank's computation. Together
// they have one priority among this rank's operations.
void execute(const std::vector<Sequence>& sequences, Network& network, bool in_background, Priority priority,
             const std::function<std::string()>& describe);

// Members of a communicator, as ranks of the job.
std::vector<int> job_ranks_of(std::vector<int> members, const Links& links);
// Throws Error(timeout): nothing has come from these ranks of the job.
[[noreturn]] void give_up(std::vector<int> ranks, Network& network, const std::string& what);

}  // namespace stretto
