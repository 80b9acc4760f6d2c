#pragma once
#include <vector>

#include "collectives/communicator/group.hpp"

// Operations that are put into streams as one task and progress together: one, or those of a group of operations.
namespace stretto {

struct Quantizing;

struct Operation::State {
  std::shared_ptr<Communicator::Group> group;
  Call call;
  OperationOptions options;
  Device device = Device::cpu;  // where its buffers lie
  std::shared_ptr<const PlannedCall> planned;
  // As far as this rank can tell, whose buffers decide together with the others'.
  const PlanVariant& way() const;
};

// Of an operation that is to be quantized, with the error state that is there now. Throws where that is of another tensor.
std::shared_ptr<const Quantizing> quantizing_of(const Operation::State& operation);

struct PendingCall {
  std::shared_ptr<const Operation::State> operation;
  Stream stream;
};

inline bool is_message(Collective collective) { return collective == Collective::send || collective == Collective::recv; }
inline bool is_to_self(const Operation::State& operation) {
  return is_message(operation.call.collective) && operation.call.root == operation.group->rank();
}

// Throws where they cannot go together: messages to itself without a partner, memory that two of them would write at a time.
// The work becomes that of all.
void launch(const std::vector<PendingCall>& started, const Work& work);

}  // namespace stretto
