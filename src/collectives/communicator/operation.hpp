#pragma once
#include <memory>

#include "collectives/execution/execution.hpp"
#include "stretto/communicator.hpp"

namespace stretto {

// A call that has been checked and planned.
struct Operation::State {
  std::shared_ptr<Communicator::Group> group;
  Call call;
  OperationOptions options;
  Device device = Device::cpu;  // where its buffers lie
  std::shared_ptr<const PlannedCall> planned;

  // The variant of the plan that this rank's buffers allow. If the plan depends on memory, the other ranks' buffers decide
  // as well.
  const PlanVariant& variant() const;
  bool is_to_self() const;  // a message from this rank to itself
  // The rounding of a quantized operation, with the current error state. Throws if the caller's error state belongs to
  // another tensor.
  std::shared_ptr<const Quantizing> quantizing() const;
};

inline CallBuffers buffers_of(const Call& call, double factor) {
  return {static_cast<const std::byte*>(call.input), static_cast<std::byte*>(call.output), call.dtype,
          reduces(call.collective) ? call.op : ReduceOp::sum, factor};
}

// An operation that was started, and the stream that it goes into.
struct PendingCall {
  std::shared_ptr<const Operation::State> operation;
  Stream stream;
};

}  // namespace stretto
