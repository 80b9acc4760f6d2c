#pragma once
#include <memory>

#include "perf/peers/peer.hpp"

namespace perf {

std::unique_ptr<Peer> make_gloo_peer(const stretto::Communicator& world);

}  // namespace perf
