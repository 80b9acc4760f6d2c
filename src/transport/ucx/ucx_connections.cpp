#include "transport/ucx/ucx_connections.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "core/log.hpp"

namespace stretto {
namespace {

bool is_connected(int descriptor) {
  sockaddr_storage peer{};
  socklen_t length = sizeof peer;
  return getpeername(descriptor, reinterpret_cast<sockaddr*>(&peer), &length) == 0;
}

// Adds the connected sockets that an epoll descriptor watches, directly or through another epoll descriptor. UCX has no call
// that lists its sockets; the kernel lists the watched ones.
void add_watched(int epoll, std::vector<pollfd>& sockets, int depth = 2) {
  std::ifstream lines(fmt::format("/proc/self/fdinfo/{}", epoll));
  for (std::string word; lines >> word;) {
    int descriptor = -1;
    if (word != "tfd:" || !(lines >> descriptor)) continue;
    if (is_connected(descriptor)) {
      sockets.push_back({descriptor, POLLOUT, 0});
    } else if (depth > 0) {
      add_watched(descriptor, sockets, depth - 1);
    }
  }
}

}  // namespace

void shut_down_stuck_connections(int event_descriptor, std::chrono::milliseconds patience) {
  std::vector<pollfd> stuck;
  add_watched(event_descriptor, stuck);
  const auto end = std::chrono::steady_clock::now() + patience;
  while (true) {
    poll(stuck.data(), stuck.size(), 0);
    std::erase_if(stuck, [](const pollfd& socket) { return socket.revents != 0; });  // broken ones as well
    if (stuck.empty() || std::chrono::steady_clock::now() >= end) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  for (const pollfd& socket : stuck) {
    log().info("A connection of UCX has taken no bytes for {} ms and is shut down.", patience.count());
    shutdown(socket.fd, SHUT_WR);
  }
}

}  // namespace stretto
