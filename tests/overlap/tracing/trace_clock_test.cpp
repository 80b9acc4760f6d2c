// Times of all ranks on one clock.
#include "overlap/tracing/trace_clock.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "stretto/launch.hpp"

namespace stretto {
namespace {

TEST(TraceClock, ReadsTheShortestExchange) {
  // The other clock is 100 ahead. The first answer came early in a long exchange, the second in a short one.
  const ClockReading reading = read_clock({{0, 101, 8}, {10, 110.5, 11}, {20, 124, 26}});
  EXPECT_DOUBLE_EQ(reading.at, 10.5);
  EXPECT_DOUBLE_EQ(reading.offset, 100);
  EXPECT_DOUBLE_EQ(reading.error, 0.5);
  const ClockReading control = read_clock({{0, 101, 8}});
  EXPECT_DOUBLE_EQ(control.offset, 97) << "wrong, ...";
  EXPECT_LE(100 - control.offset, control.error) << "... but not by more than it says";
}

TEST(TraceClock, DriftsEvenlyBetweenTwoReadings) {
  const ClockLine line({.at = 10, .offset = 5, .error = 0.1}, {.at = 20, .offset = 7, .error = 0.3});
  EXPECT_DOUBLE_EQ(line.there(10), 15);
  EXPECT_DOUBLE_EQ(line.there(15), 21);
  EXPECT_DOUBLE_EQ(line.there(20), 27);
  EXPECT_DOUBLE_EQ(line.there(0), 5) << "as in the beginning";
  EXPECT_DOUBLE_EQ(line.there(30), 37) << "as in the end";
  EXPECT_DOUBLE_EQ(line.error(), 0.3);
  EXPECT_DOUBLE_EQ(ClockLine({}, {}).there(12.5), 12.5);
}

TEST(TraceClock, IsComparedWithRank0WhereItIsAnother) {
  run_threads(4, [](const Communicator& world) {
    const bool other_host = world.rank() >= 2;
    const double ahead = other_host ? 1000.0 * world.rank() : 0;
    const ClockReading reading =
        compare_with_rank_0(world, other_host ? "there" : "here", [&] { return now_seconds() + ahead; });
    EXPECT_EQ(reading.error > 0, other_host);
    EXPECT_LE(std::abs(reading.offset + ahead), reading.error);
    const ClockReading same = compare_with_rank_0(world, clock_name(), [&] { return now_seconds() + ahead; });
    EXPECT_EQ(same.offset, 0);
  });
}

}  // namespace
}  // namespace stretto
