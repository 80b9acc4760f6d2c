#include "server/state_door.hpp"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <ctime>
#include <thread>

#include "support/error.hpp"

namespace stretto {
namespace {

Meeting at(int port, const std::string& secret) {
  return {.host = "127.0.0.1", .port = port, .secret = secret, .timeout = 5};
}

TEST(StateDoor, SaysTheStateToWhoeverKnowsTheSecret) {
  int asked = 0;
  const std::string text(1 << 20, 'x');
  StateDoor door({.port = 0, .secret = "secret"}, introduce(3, 4, "servers"), [&] {
    ++asked;
    return text + std::to_string(asked);
  });
  EXPECT_EQ(state_behind(at(door.port(), "secret")), text + "1");
  EXPECT_EQ(state_behind(at(door.port(), "secret")), text + "2");
  expect_refusal([&] { state_behind(at(door.port(), "another")); }, "STRETTO_JOB_SECRET differs");
  expect_refusal([&] { arrive(at(door.port(), "secret"), introduce(1, 4, "a job")); }, "and not where ranks meet");
  expect_refusal([&] { state_behind(at(door.port(), "secret"), programs_door); }, "it is the port of a server");
  EXPECT_EQ(asked, 2);
}

// More strangers than the door keeps, who say nothing or garbage, keep nobody away.
TEST(StateDoor, StrangersDoNotKeepOthersAway) {
  StateDoor door({.port = 0}, introduce(3, 4, "servers"), [] { return "state"; });
  std::vector<Socket> strangers;
  for (int i = 0; i < 40; ++i) {
    strangers.push_back(try_to_connect("127.0.0.1", door.port(), 5));
    ASSERT_TRUE(strangers.back());
    if (i % 2 == 0) strangers.back().write_some("GET / HTTP/1.1\r\n\r\n", 18);
  }
  EXPECT_EQ(state_behind(at(door.port(), "")), "state");
}

// They have asked, and read no byte of an answer that no socket has room for.
TEST(StateDoor, ReadersThatDoNotReadKeepNobodyAway) {
  const std::string text(std::size_t{32} << 20, 'x');
  StateDoor door({.port = 0}, introduce(3, 4, "servers"), [&] { return text; });
  std::vector<Admission> readers;
  for (int i = 0; i < 3; ++i) readers.push_back(arrive(at(door.port(), ""), introduce(0, 1, "the state of servers")));
  EXPECT_EQ(state_behind(at(door.port(), "")).size(), text.size());
}

double processor_seconds() {
  timespec used{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
}

// A connection that cannot be accepted stays ready, so that a door that only waits for it would never sleep.
TEST(StateDoor, SleepsWhileThereIsNoDescriptor) {
  StateDoor door({.port = 0}, introduce(3, 4, "servers"), [] { return "state"; });
  const Socket client(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit none = before;
  none.rlim_cur = static_cast<rlim_t>(Socket(dup(client.descriptor())).descriptor());  // the first that is free
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(door.port()));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int connected = connect(client.descriptor(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
  const double used = processor_seconds();
  std::this_thread::sleep_for(std::chrono::milliseconds(600));
  EXPECT_LT(processor_seconds() - used, 0.3);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(connected, 0);
  EXPECT_EQ(state_behind(at(door.port(), "")), "state");
}

TEST(StateDoor, RefusesInOneSentence) {
  int port = 0;
  {
    const StateDoor door({.port = 0}, introduce(3, 4, "servers"), [] { return ""; });
    port = door.port();
    EXPECT_THAT(sentence_of(ErrorCode::unavailable,
                            [&] { StateDoor({.port = port}, introduce(4, 5, "servers"), [] { return ""; }); }),
                testing::HasSubstr("cannot listen on port " + std::to_string(port) + ": Address already in use"));
  }
  Meeting nobody = at(port, "");
  nobody.timeout = 0.1;
  EXPECT_THAT(sentence_of(ErrorCode::unavailable, [&] { state_behind(nobody); }),
              testing::AllOf(testing::StartsWith("No server says its state at 127.0.0.1:" + std::to_string(port)),
                             testing::HasSubstr("The server does not answer"), testing::Not(testing::HasSubstr("ank 0"))));
}

}  // namespace
}  // namespace stretto
