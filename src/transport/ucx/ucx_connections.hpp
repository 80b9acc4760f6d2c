#pragma once
#include <chrono>

namespace stretto {

// When a worker is destroyed, UCX says goodbye on each of its connections, and waits without a limit for one that takes no
// bytes: its host or the network to it is gone. This function gives them `patience` together, and shuts down those that then
// still take none; what they took before still goes out if the network comes back. event_descriptor: the worker's, which
// watches its connections.
void shut_down_stuck_connections(int event_descriptor, std::chrono::milliseconds patience);

}  // namespace stretto
