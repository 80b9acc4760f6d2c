#include "transport/ucx/ucx_connections.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>

namespace stretto {
namespace {

// Two connections, of which an epoll descriptor watches the first end, through another one.
class UcxConnections : public testing::Test {
 protected:
  UcxConnections() : outer_(epoll_create1(0)), inner_(epoll_create1(0)) {
    watch(outer_, inner_);
    for (auto& ends : connections_) {
      EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends.data()), 0);
      watch(inner_, ends[0]);
    }
  }
  ~UcxConnections() override {
    for (const auto& ends : connections_) {
      for (const int end : ends) close(end);
    }
    close(inner_);
    close(outer_);
  }

  static void watch(int epoll, int descriptor) {
    epoll_event event{EPOLLIN, {}};
    EXPECT_EQ(epoll_ctl(epoll, EPOLL_CTL_ADD, descriptor, &event), 0);
  }
  // Sends until the connection takes no more, and returns why.
  static int fill(int end) {
    const std::array<char, 4096> bytes{};
    while (send(end, bytes.data(), bytes.size(), MSG_NOSIGNAL) > 0) {
    }
    return errno;
  }

  const int outer_, inner_;
  std::array<std::array<int, 2>, 2> connections_{};
};

TEST_F(UcxConnections, ThoseThatTakeNoBytesAreShutDown) {
  const int full = connections_[0][0], open = connections_[1][0];
  ASSERT_EQ(fill(full), EAGAIN);
  shut_down_stuck_connections(outer_, std::chrono::milliseconds(20));
  EXPECT_EQ(fill(full), EPIPE);
  EXPECT_EQ(fill(open), EAGAIN);
}

TEST_F(UcxConnections, WhatTheyTookStillComes) {
  ASSERT_EQ(fill(connections_[0][0]), EAGAIN);
  shut_down_stuck_connections(outer_, std::chrono::milliseconds(0));
  std::array<char, 4096> bytes{};
  std::size_t blocks = 0;
  ssize_t count = 0;
  while ((count = read(connections_[0][1], bytes.data(), bytes.size())) > 0) ++blocks;
  EXPECT_GT(blocks, 0U);
  EXPECT_EQ(count, 0) << "the end, not " << errno;
}

}  // namespace
}  // namespace stretto
