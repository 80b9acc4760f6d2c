#include "server/state_door.hpp"

#include <gmock/gmock.h>

#include <cstring>

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

TEST(StateDoor, RefusesInOneSentence) {
  int port = 0;
  {
    const StateDoor door({.port = 0}, introduce(3, 4, "servers"), [] { return ""; });
    port = door.port();
    EXPECT_THAT(sentence_of(ErrorCode::unavailable,
                            [&] { StateDoor({.port = port}, introduce(4, 5, "servers"), [] { return ""; }); }),
                testing::HasSubstr("cannot listen on port " + std::to_string(port)));
  }
  Meeting nobody = at(port, "");
  nobody.timeout = 0.1;
  EXPECT_THAT(sentence_of(ErrorCode::unavailable, [&] { state_behind(nobody); }),
              testing::StartsWith("No server says its state at 127.0.0.1:" + std::to_string(port)));
}

}  // namespace
}  // namespace stretto
