#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "collectives/execution/buffers/wire_buffers.hpp"
#include "stretto/ledger.hpp"
#include "stretto/plan.hpp"
#include "stretto/tensor.hpp"
#include "transport/links.hpp"

namespace stretto {

class GpuLinks;
class SharedMemory;

// One way to perform a call.
struct PlanVariant {
  std::shared_ptr<const Plan> plan;
  DType wire = DType::f32;  // type of the elements that travel: the call's, or f32 if narrow floats are to be rounded once
  std::size_t packet_bytes = 0;          // Algorithm::packet: the most bytes that any rank puts into a packet
  std::shared_ptr<const Record> record;  // the ledger's record of such a call, without the times
};

// The ways to perform one call: `ordinary` for any buffers, `symmetric` if every rank's buffers are in the symmetric heap.
struct PlannedCall {
  PlanVariant ordinary, symmetric;
  std::uint16_t signature = 0;  // call_signature()
  // If so, the ranks tell each other where their buffers are (OperationRun).
  bool depends_on_memory() const { return ordinary.plan != symmetric.plan; }
};

// The rounding of a quantized call, and its error state by hop; the tensors have no elements if errors are not kept.
struct Quantizing {
  Rounding rounding = Rounding::nearest_even;
  std::uint64_t seed = 0;
  std::array<Tensor, hops> residuals;
};

// A rank's exchange with its peers before an operation's plan begins. It never waits.
class Preamble {
 public:
  virtual ~Preamble() = default;
  virtual bool advance() = 0;  // returns true if anything moved
  virtual bool finished() const = 0;
  virtual std::vector<int> awaited() const = 0;  // members of the communicator
};

// One rank's part in one call: its plans, its buffers and the links that they use. All objects that it points to must
// outlive it.
struct Execution {
  const PlannedCall* planned = nullptr;  // null: the execution is a preamble alone
  CallBuffers buffers;
  Links* links = nullptr;
  int first_lane = 0;                                 // of the links
  SharedMemory* shared = nullptr;                     // null if the members do not share memory
  GpuLinks* gpu_links = nullptr;                      // null before the communicator's first call for GPUs
  std::size_t call = 0;                               // its number among the calls that were launched together
  std::shared_ptr<const Quantizing> quantizing = {};  // of quantized calls
  std::shared_ptr<Preamble> preamble = {};            // null: none
  std::shared_ptr<const PlannedCall> own_plan = {};   // keeps a plan alive that has no other owner
};

// Executions that run one after the other.
using Sequence = std::vector<Execution>;

// The operation by which two contributions are combined.
inline ReduceOp combining(ReduceOp op) { return op == ReduceOp::avg || op == ReduceOp::premul_sum ? ReduceOp::sum : op; }

// Members of a communicator, as ranks of the job.
std::vector<int> job_ranks_of(std::vector<int> members, const Links& links);

}  // namespace stretto
