#ifdef STRETTO_HAVE_UCX
#include "transport/ucx/ucx_listeners.hpp"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <set>
#include <vector>

#include "support/ordinary_user.hpp"
#include "transport/bootstrap/job.hpp"
#include "transport/bootstrap/socket.hpp"

namespace stretto {
namespace {

constexpr std::uint32_t loopback = 0x7f000001;

bool becomes(const Socket& socket, short event) {
  pollfd wanted{socket.descriptor(), event, 0};
  return poll(&wanted, 1, 300) == 1 && (wanted.revents & event) != 0;
}

// A socket that takes the place of one of UCX's.
class Port {
 public:
  Port() : listener_(listen_on("127.0.0.1", 0)), listens_(listener_.socket) { listeners.wait_for_words(); }

  // The connection is not complete yet.
  Socket call() const {
    Socket caller(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(listener_.port));
    address.sin_addr.s_addr = htonl(loopback);
    EXPECT_TRUE(connect(caller.descriptor(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 ||
                errno == EINPROGRESS);
    return caller;
  }
  bool gives_out_a_connection() const { return becomes(listens_, POLLIN); }
  // Whether callers that speak are heard, or not: all of them.
  bool hears_callers() const {
    for (int caller = 0; caller < 3; ++caller) {
      const Socket calls = call();
      if (becomes(calls, POLLOUT)) calls.write_some("x", 1);
      if (!gives_out_a_connection()) return false;
      accept_on(listens_.descriptor());
    }
    return true;
  }
  bool is_deaf() const {
    std::vector<Socket> callers;
    for (int caller = 0; caller < 3; ++caller) {
      callers.push_back(call());
      if (becomes(callers.back(), POLLOUT) || gives_out_a_connection()) return false;
    }
    return true;
  }

  UcxListeners listeners;

 private:
  Listener listener_;
  Socket listens_;
};

TEST(UcxListeners, GiveOutAConnectionThatSaysSomething) {
  const Port port;
  const Socket caller = port.call();
  EXPECT_TRUE(becomes(caller, POLLOUT));
  EXPECT_FALSE(port.gives_out_a_connection());
  EXPECT_EQ(caller.write_some("x", 1), 1);
  EXPECT_TRUE(port.gives_out_a_connection());
}

TEST(UcxListeners, HearWhomTheyAreTold) {
  EXPECT_TRUE(holds_for_an_ordinary_user([] {
    Port port;
    port.listeners.hear_only({0x0a000001, loopback, 0xc0a80001});
    if (!port.hears_callers()) return false;
    port.listeners.hear_only({0x0a000001, 0xc0a80001});
    return port.is_deaf();
  }));
}

// 5,000 hosts of one network, and then the caller's, too.
TEST(UcxListeners, CompareVeryManyHostsByTheirNetworks) {
  Port port;
  std::set<std::uint32_t> hosts;
  for (std::uint32_t i = 0; i < 5000; ++i) hosts.insert(0x0a000000 + i);
  port.listeners.hear_only(hosts);
  EXPECT_TRUE(port.is_deaf());
  hosts.insert(loopback);
  port.listeners.hear_only(hosts);
  EXPECT_TRUE(port.hears_callers());
}

TEST(UcxListeners, LeaveOtherSocketsAlone) {
  const Listener before = listen_on("127.0.0.1", 0);
  const Socket closes(before.socket);
  UcxListeners listeners;
  listeners.wait_for_words();
  listeners.hear_only({});
  EXPECT_TRUE(try_to_connect("127.0.0.1", before.port, 1));
  EXPECT_TRUE(becomes(closes, POLLIN));
}

TEST(UcxListeners, KnowTheAddressesOfTheHost) { EXPECT_THAT(addresses_of_this_host(), testing::Contains(loopback)); }

}  // namespace
}  // namespace stretto
#endif
