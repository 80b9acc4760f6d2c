#pragma once
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <vector>

#include "transport/bootstrap/socket.hpp"

namespace stretto {

// The IPv4 addresses of this host's interfaces, 127.0.0.1 among them, as numbers in the host's byte order.
std::vector<std::uint32_t> addresses_of_this_host();
// Those of this process, and one more: the descriptor by which they are listed.
std::vector<int> open_descriptors();

// The sockets on which UCX listens. UCX does not tell them: they are those of this process that listen at wait_for_words()
// and did not when this object was made (`alone_` makes other ranks of the process wait with theirs). UCX does not ask who
// connects, keeps each connection that it accepts, and aborts the process if one breaks its protocol after the greeting. So
// the kernel decides who reaches it.
class UcxListeners {
 public:
  UcxListeners();
  // UCX gets a connection when its first byte has come: ranks send theirs at once, and a silent stranger costs no
  // descriptor.
  void wait_for_words();
  // From now on the sockets get connections from these hosts only. If there are more than 256 addresses, only their leading
  // bits count: the sockets then get connections from all hosts of these networks. Must be called before another rank knows
  // the ports.
  void hear_only(const std::set<std::uint32_t>& addresses);

 private:
  static std::set<int> listening_sockets();

  std::unique_lock<std::mutex> alone_;
  std::set<int> others_;
  std::set<int> own_;
  std::map<int, Socket> deaf_;  // by one of own_: listens on its port, too, and gets the connections from other hosts
};

}  // namespace stretto
