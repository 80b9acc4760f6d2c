#pragma once
#include "perf/peers/peer.hpp"

namespace perf {

// NCCL itself, called directly, between ranks with a GPU each. Collective.
std::unique_ptr<Peer> make_nccl_peer(const stretto::Communicator& world);

}  // namespace perf
