#include <gtest/gtest.h>

#include <mutex>

#include "stretto/launch.hpp"
#include "stretto/planning/calibration.hpp"

namespace stretto {
namespace {

constexpr Effort brief{.looks = 1, .most_calls = 2, .seconds = 1e-5, .least_calls = 1};

TEST(TimedCall, EveryPossibleMethodAlikeOnAllRanks) {
  std::mutex mutex;
  std::vector<CallTimes> all;
  run_threads(3, [&](const Communicator& world) {
    const TimedCall call(world, Collective::all_reduce, TimedCall::count_of(Collective::all_reduce, 1 << 20, 3), false);
    EXPECT_EQ(call.bytes(), 1 << 20);
    const CallTimes times = call.time(methods_within_node(Collective::all_reduce, call.request().count), brief);
    const std::lock_guard lock(mutex);
    all.push_back(times);
  });
  ASSERT_EQ(all.size(), 3U);
  for (const CallTimes& times : all) {
    ASSERT_EQ(times.methods.size(), all[0].methods.size());
    for (std::size_t m = 0; m < times.methods.size(); ++m) {
      EXPECT_EQ(times.methods[m].method, all[0].methods[m].method);
      EXPECT_EQ(times.methods[m].seconds, all[0].methods[m].seconds);
      EXPECT_GT(times.methods[m].seconds, 0);
    }
    EXPECT_EQ(times.of(times.fastest().method), times.fastest().seconds);
    EXPECT_LT(times.of(Algorithm::ring), 1e9);
    EXPECT_GT(times.of(Algorithm::packet), 1e9) << "1 MiB does not fit into a packet";
  }
}

// If an early call of a method takes longer than a look may, each of its looks makes one call, or the least number of them.
TEST(TimedCall, SlowCallsAreFew) {
  run_threads(2, [&](const Communicator& world) {
    const auto operations = [&](double look_seconds, int least_of_look = 1) {
      const std::uint64_t before = world.job().ledger().next_sequence();
      const TimedCall call(world, Collective::all_reduce, 64, false);
      call.time({Algorithm::ring},
                {.looks = 2, .most_calls = 5, .look_seconds = look_seconds, .least_of_look = least_of_look, .seconds = 0});
      return world.job().ledger().next_sequence() - before;
    };
    const auto many = operations(1e9), few = operations(0);
    EXPECT_EQ(many, few + 2 * (5 - 1));
    EXPECT_EQ(operations(0, 3), few + 2 * (3 - 1));
    EXPECT_EQ(operations(0, 9), many);
  });
}

TEST(TimedCall, SharesOfEveryRank) {
  EXPECT_EQ(TimedCall::count_of(Collective::all_gather, 4096, 4), 256);
  EXPECT_EQ(TimedCall::count_of(Collective::broadcast, 4096, 4), 1024);
  EXPECT_EQ(TimedCall::count_of(Collective::all_to_all, 8, 4), 0);
}

TEST(MethodsWithinNode, NoPieceIsEmpty) {
  for (const Method& method : methods_within_node(Collective::broadcast, 5)) {
    EXPECT_LE(method.pieces, 5) << to_string(method);
    EXPECT_FALSE(needs_nodes(method.algorithm));
  }
}

}  // namespace
}  // namespace stretto
