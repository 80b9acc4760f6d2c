#pragma once
#include <vector>

#include "collectives/communicator/operation.hpp"
#include "collectives/execution/execution.hpp"

namespace stretto {

// The executions of calls that are launched together, in the order in which they have to go: collectives of a communicator
// follow each other; so do messages to one peer, and messages from it. Everything else goes side by side. The operations
// must outlive the executions. Throws Error(invalid_argument) for messages to oneself without a partner.
std::vector<Sequence> sequences_of(const std::vector<PendingCall>& calls);

// Sequences run at the same time; only executions that follow each other may share memory that is written. Throws
// Error(invalid_argument) if others do.
void check_apart(const std::vector<Sequence>& sequences);

}  // namespace stretto
