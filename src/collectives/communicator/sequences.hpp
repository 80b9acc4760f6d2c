#pragma once
#include <vector>

#include "collectives/communicator/operation.hpp"
#include "collectives/execution/execution.hpp"

namespace stretto {

// Returns the executions of calls that are launched together, in the order that they must keep: collectives of one
// communicator follow each other, and so do messages to one peer, and messages from one peer. All others run in parallel.
// The operations must outlive the executions. Throws Error(invalid_argument) for messages to oneself without a partner.
std::vector<Sequence> sequences_of(const std::vector<PendingCall>& calls);

// Throws Error(invalid_argument) if executions of different sequences, which run at the same time, share memory that one of
// them writes.
void check_apart(const std::vector<Sequence>& sequences);

}  // namespace stretto
