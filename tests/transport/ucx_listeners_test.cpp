#ifdef STRETTO_HAVE_UCX
#include "transport/ucx/ucx_listeners.hpp"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>

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
class UcxListenersTest : public testing::Test {
 protected:
  UcxListenersTest() : listener_(listen_on("127.0.0.1", 0)), listens_(listener_.socket) { listeners_.wait_for_words(); }

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

  UcxListeners listeners_;
  Listener listener_;
  Socket listens_;
};

TEST_F(UcxListenersTest, GiveOutAConnectionThatSaysSomething) {
  const Socket caller = call();
  EXPECT_TRUE(becomes(caller, POLLOUT));
  EXPECT_FALSE(becomes(listens_, POLLIN));
  EXPECT_EQ(caller.write_some("x", 1), 1);
  EXPECT_TRUE(becomes(listens_, POLLIN));
}

TEST_F(UcxListenersTest, HearWhomTheyAreTold) {
  listeners_.hear_only({0x0a000001, loopback, 0xc0a80001});
  EXPECT_TRUE(becomes(call(), POLLOUT));
  listeners_.hear_only({0x0a000001, 0xc0a80001});
  EXPECT_FALSE(becomes(call(), POLLOUT));
}

// 5,000 hosts of one network, and then the caller's, too.
TEST_F(UcxListenersTest, CompareVeryManyHostsByTheirNetworks) {
  std::set<std::uint32_t> hosts;
  for (std::uint32_t i = 0; i < 5000; ++i) hosts.insert(0x0a000000 + i);
  listeners_.hear_only(hosts);
  EXPECT_FALSE(becomes(call(), POLLOUT));
  hosts.insert(loopback);
  listeners_.hear_only(hosts);
  EXPECT_TRUE(becomes(call(), POLLOUT));
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
