#pragma once
#include <utility>

#include "collectives/communicator/operation.hpp"

namespace stretto {

// How many OperationGroups this thread is in. Every operation reads it, so the read must need neither set-up nor a call.
[[gnu::tls_model("initial-exec")]] inline constinit thread_local int operation_group_depth = 0;

// Whether an OperationGroup collects this thread's calls.
inline bool in_operation_group() { return operation_group_depth > 0; }
// Adds a call to this thread's group and returns the work of the whole group.
Work collect_in_group(PendingCall call);

// While an object of this class lives, this thread's calls are not collected.
class OutsideOperationGroups {
 public:
  OutsideOperationGroups() : depth_(std::exchange(operation_group_depth, 0)) {}
  ~OutsideOperationGroups() { operation_group_depth = depth_; }
  OutsideOperationGroups(const OutsideOperationGroups&) = delete;
  OutsideOperationGroups& operator=(const OutsideOperationGroups&) = delete;

 private:
  int depth_;
};

}  // namespace stretto
