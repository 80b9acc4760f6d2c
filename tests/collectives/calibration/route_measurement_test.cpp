#include "collectives/calibration/route_measurement.hpp"

#include <gtest/gtest.h>

namespace stretto {
namespace {

// 2 cores for a second each: ranks that have them alone, and beside a program that takes one of them.
TEST(RouteMeasurement, OthersRan) {
  EXPECT_FALSE(others_ran({.running = 1.9, .waiting = 0.1}, 1));
  EXPECT_TRUE(others_ran({.running = 1.4, .waiting = 0.6}, 1));
  EXPECT_FALSE(others_ran({.running = 0.2, .waiting = 0.01}, 1)) << "ranks that sleep leave their cores to nobody";
}

// 4 ranks on 2 cores wait for one another as long as they run.
TEST(RouteMeasurement, RanksThatShareCoresAreNoOthers) {
  EXPECT_FALSE(others_ran({.running = 2, .waiting = 2}, 2));
  EXPECT_TRUE(others_ran({.running = 1.4, .waiting = 2.6}, 2));
  EXPECT_FALSE(others_ran({}, 2)) << "Linux does not count";
}

}  // namespace
}  // namespace stretto
