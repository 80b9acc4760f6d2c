#pragma once
#include "perf/peers/peer.hpp"

namespace perf {

// NCCL itself, called directly, between ranks that have a GPU each. All ranks call it.
std::unique_ptr<Peer> make_nccl_peer(const stretto::Communicator& world);

}  // namespace perf
