#pragma once
#include <cstdint>
#include <set>
#include <vector>

namespace stretto {

// The IPv4 addresses of this host's interfaces, 127.0.0.1 among them, as numbers in the host's byte order.
std::vector<std::uint32_t> addresses_of_this_host();

// The sockets on which UCX listens, which it keeps to itself: those of this process that listen now and did not when this
// was made. UCX asks nobody who he is, keeps each connection that it accepts, and aborts the process when one breaks its
// protocol behind the greeting. So the kernel decides who reaches it.
class UcxListeners {
 public:
  UcxListeners() : others_(listening_sockets()) {}
  // UCX gets a connection when its first byte has come: ranks send theirs at once, and who says nothing costs no descriptor.
  void wait_for_words();
  // From now on the sockets take packets from these hosts only, and so do the connections that they accept. Of more than 256
  // addresses, the common beginnings count: they take packets from all hosts of these networks.
  void hear_only(const std::set<std::uint32_t>& addresses);

 private:
  static std::set<int> listening_sockets();

  std::set<int> others_;
  std::set<int> own_;
};

}  // namespace stretto
