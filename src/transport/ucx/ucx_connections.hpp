#pragma once
#include <chrono>

namespace stretto {

// UCX says goodbye on each connection of a worker that is destroyed, and waits without a limit where a connection takes no
// bytes: its host or the network to it is gone. This gives them so long together, and shuts down those that still take
// none; what they took before still goes out if the network comes back. event_descriptor: the worker's, which watches its
// connections.
void shut_down_stuck_connections(int event_descriptor, std::chrono::milliseconds patience);

}  // namespace stretto
