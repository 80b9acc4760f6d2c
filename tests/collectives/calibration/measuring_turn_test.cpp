#include "collectives/calibration/measuring_turn.hpp"

#include <gtest/gtest.h>

#include <ctime>
#include <fstream>
#include <string>
#include <vector>

#include "../../temporary_directory.hpp"

namespace stretto {
namespace {

TEST(MeasuringTurn, OneJobAtATime) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/new/turn";
  MeasuringTurn second(path);
  {
    MeasuringTurn first(path);
    EXPECT_TRUE(first.take(0));
    EXPECT_FALSE(second.take(0.05));
  }
  EXPECT_TRUE(second.take(0));
  for (const char* nowhere : {"", "/dev/null/no/turn"}) {
    MeasuringTurn alone(nowhere);
    EXPECT_TRUE(alone.take(0));
    EXPECT_EQ(alone.note("shm", true), 0);
    EXPECT_LE(alone.seconds_to_wait("shm"), 0);
  }
}

TEST(MeasuringTurn, PausesBetweenTriesGrow) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/turn";
  MeasuringTurn turn(path);
  ASSERT_TRUE(turn.take(0));
  EXPECT_LE(turn.seconds_to_wait("shm"), 0);
  for (const double pause : {60, 120, 240, 480}) EXPECT_EQ(turn.note("shm", true), pause);
  EXPECT_GT(turn.seconds_to_wait("shm"), 400);
  EXPECT_LE(turn.seconds_to_wait("network"), 0);
  for (int i = 0; i < 100; ++i) turn.note("shm", true);
  EXPECT_EQ(turn.note("shm", true), 24 * 3600);
  EXPECT_EQ(turn.note("network", true), 60);
  EXPECT_EQ(turn.note("shm", false), 0);
  EXPECT_LE(turn.seconds_to_wait("shm"), 0);
  EXPECT_GT(turn.seconds_to_wait("network"), 0);
  EXPECT_EQ(turn.note("shm", true), 60);
}

TEST(MeasuringTurn, PutsOff) {
  const TemporaryDirectory directory;
  MeasuringTurn turn(directory.path() + "/turn");
  ASSERT_TRUE(turn.take(0));
  turn.note("shm", true);
  turn.put_off("shm, once more", 600);
  EXPECT_GT(turn.seconds_to_wait("shm, once more"), 590);
  EXPECT_EQ(turn.note("shm", false), 0);
  EXPECT_GT(turn.seconds_to_wait("shm, once more"), 590);
  EXPECT_LE(turn.seconds_to_wait("shm"), 0);
}

TEST(MeasuringTurn, NothingInTheFileKeepsJobsFromTryingForEver) {
  const std::string in_a_week = std::to_string(std::time(nullptr) + 7 * 24 * 3600);
  const std::vector<std::string> texts = {R"({"shm": {"tries": 3, "ag)", "[1]", R"({"shm": 3})",
                                          R"({"shm": {"tries": "3", "again": 1e99}})",
                                          R"({"shm": {"tries": 3, "again": )" + in_a_week + "}}"};
  for (const std::string& text : texts) {
    const TemporaryDirectory directory;
    const std::string path = directory.write("turn", text);
    MeasuringTurn turn(path);
    ASSERT_TRUE(turn.take(0));
    EXPECT_LE(turn.seconds_to_wait("shm"), 0) << text;
    EXPECT_GT(turn.note("shm", true), 0) << text;
    EXPECT_GT(turn.seconds_to_wait("shm"), 0) << text;
  }
}

}  // namespace
}  // namespace stretto
