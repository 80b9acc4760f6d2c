#pragma once
#include <functional>
#include <vector>

#include "collectives/communicator/launched_group.hpp"
#include "collectives/execution/host_executor.hpp"

namespace stretto {

// Gives, for the i-th operation, who is to be told how it is done, once that is known.
using Settled = std::function<std::function<void(const PlanVariant&)>(std::size_t)>;

// Operations that are started together, in the order in which they have to go: collectives of a communicator follow each
// other; so do messages to one peer, and messages from it. Everything else goes side by side. Throws
// Error(invalid_argument) for messages to oneself without a partner.
std::vector<Sequence> sequences_of(const std::vector<PendingCall>& started, const Settled& settled);

// Sequences run at the same time; only those that follow each other may share memory that is written. Throws
// Error(invalid_argument) where others do.
void check_apart(const std::vector<Sequence>& sequences);

}  // namespace stretto
