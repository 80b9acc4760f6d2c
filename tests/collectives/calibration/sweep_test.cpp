#include "collectives/calibration/sweep.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "stretto/launch.hpp"
#include "variables.hpp"

namespace stretto {
namespace {

constexpr Effort one_call{.looks = 1, .most_calls = 1, .seconds = 0};
constexpr Efforts single{one_call, one_call};

std::vector<Method> few_methods(const TimedCall& call) {
  return call.request().collective == Collective::all_reduce ? std::vector<Method>{Algorithm::ring, Algorithm::two_shot}
                                                             : std::vector<Method>{Algorithm::direct};
}

// The numbers of methods that were timed for all_reduce, by size.
std::vector<std::size_t> methods_of(const Sweep& sweep) {
  std::vector<std::size_t> numbers;
  for (const CallTimes& times : sweep.times()) {
    if (times.request.collective == Collective::all_reduce) numbers.push_back(times.methods.size());
  }
  return numbers;
}

// The methods that were timed at the last size.
std::vector<std::string> names_of(const Sweep& sweep, Collective collective) {
  std::vector<std::string> names;
  for (const CallTimes& times : sweep.times()) {
    if (times.request.collective != collective) continue;
    names.clear();
    for (const MethodTime& time : times.methods) names.push_back(to_string(time.method));
  }
  return names;
}

// If the library's choice takes no longer than the bytes alone, the sweep times no other method and no larger vector.
TEST(Sweep, TriesNoMethodThatCannotBeFaster) {
  run_threads(2, [](const Communicator& world) {
    for (const double least : {1e9, 1e-9}) {
      Sweep sweep(world, single, {60});
      EXPECT_EQ(sweep.run({{4 << 10, false}, {1 << 20, false}, {2 << 20, false}}, few_methods,
                          [&](const TimedCall&) { return least; }),
                std::nullopt);
      const std::vector<std::size_t> methods = methods_of(sweep);
      if (least > 1) {
        EXPECT_EQ(methods, (std::vector<std::size_t>{2, 1}));
      } else {
        ASSERT_EQ(methods.size(), 3U);
        EXPECT_GE(*std::min_element(methods.begin(), methods.end()), 2U);
      }
    }
  });
}

// The sweep does not time a method that an earlier measurement found far behind, unless a brief look shows that it is not.
// (A busy machine may slow down either of the two that it compares.) It times one that was not measured earlier.
TEST(Sweep, LeavesOutWhatWasFarBehindEarlierAndStillIs) {
  run_threads(2, [](const Communicator& world) {
    const Method slow = method_from_text("chain/256");
    const auto two_methods = [&](const TimedCall& call) {
      const bool is_broadcast = call.request().collective == Collective::broadcast;
      return is_broadcast ? std::vector<Method>{Algorithm::direct, slow} : few_methods(call);
    };
    const auto names_with = [&](Collective collective, const Method& method, double seconds) {
      Sweep first(world, single, {60});
      EXPECT_EQ(first.run({{4 << 10, false}}, two_methods), std::nullopt);
      std::vector<CallTimes> earlier = first.times();
      for (CallTimes& times : earlier) {
        if (times.request.collective == collective) times.methods = {{method, seconds}, {Algorithm::staged, 1e-6}};
      }
      Sweep again(world, single, {60}, earlier);
      EXPECT_EQ(again.run({{4 << 10, false}}, two_methods), std::nullopt);
      return names_of(again, collective);
    };
    using Names = std::vector<std::string>;
    const auto once = [&](const Names& names, Collective collective, const Method& method) {
      for (int i = 0; i < 50; ++i) {
        if (names_with(collective, method, 4e-6) == names) return true;
      }
      return false;
    };
    EXPECT_EQ(names_with(Collective::broadcast, slow, 2e-6), (Names{"direct", "chain/256"}));
    EXPECT_TRUE(once({"direct"}, Collective::broadcast, slow));
    EXPECT_TRUE(once({"two_shot", "ring"}, Collective::all_reduce, Algorithm::ring));
  });
}

// Large calls that no measurement has reached come before the other large calls.
TEST(Sweep, BeginsLargeCallsWithThoseThatNoMeasurementHas) {
  run_threads(2, [](const Communicator& world) {
    const std::vector<Sweep::Size> sizes{{4 << 10, true}, {1 << 20, true}, {2 << 20, true}};
    Sweep first(world, single, {60});
    EXPECT_EQ(first.run(sizes, few_methods), std::nullopt);
    std::vector<CallTimes> earlier = first.times();
    const auto is_unknown = [](const CallTimes& times) {
      return times.bytes == 2 << 20 && times.request.collective == Collective::gather && !times.symmetric;
    };
    std::erase_if(earlier, is_unknown);
    Sweep again(world, single, {60}, earlier);
    EXPECT_EQ(again.run(sizes, few_methods), std::nullopt);
    std::vector<CallTimes> order = again.times();
    ASSERT_EQ(order.size(), first.times().size());
    EXPECT_TRUE(order.front().symmetric);
    const auto begin_of_large =
        std::find_if(order.begin(), order.end(), [](const CallTimes& times) { return times.bytes > 4 << 10; });
    EXPECT_TRUE(is_unknown(*begin_of_large));
    order.erase(begin_of_large);
    EXPECT_TRUE(std::is_sorted(order.begin(), order.end(),
                               [](const CallTimes& a, const CallTimes& b) { return a.bytes < b.bytes; }));
  });
}

// Between nodes, all that no measurement has reached comes before small calls that one has. Where time is short for large
// calls, the small ones still come.
TEST(Sweep, BeginsWithAllThatIsUnknownBetweenNodes) {
  const Variable nodes("STRETTO_RANKS_PER_NODE", "1");
  run_threads(2, [](const Communicator& world) {
    const std::vector<Sweep::Size> sizes{{4 << 10, false}, {1 << 20, false}};
    Sweep first(world, single, {60});
    EXPECT_EQ(first.run(sizes, few_methods), std::nullopt);
    EXPECT_TRUE(first.has_new_calls());
    std::vector<CallTimes> earlier = first.times();
    std::erase_if(earlier, [](const CallTimes& times) { return times.bytes == 1 << 20; });
    for (const bool has_time : {true, false}) {
      Sweep again(world, single, {has_time ? 60.0 : 0.0, 60}, earlier);
      EXPECT_EQ(again.run(sizes, few_methods), has_time ? std::nullopt : std::optional<std::int64_t>(1 << 20));
      EXPECT_EQ(again.has_new_calls(), has_time);
      ASSERT_EQ(again.times().size(), (has_time ? 2 : 1) * timed_collectives().size());
      EXPECT_EQ(again.times().front().bytes, has_time ? 1 << 20 : 4 << 10);
      EXPECT_TRUE(std::is_sorted(again.times().begin(), again.times().end(),
                                 [](const CallTimes& a, const CallTimes& b) { return a.bytes > b.bytes; }));
    }
  });
}

// Sizes below 1 MiB may take three times the budget.
TEST(Sweep, StopsWhenTheBudgetIsUsedUp) {
  run_threads(2, [](const Communicator& world) {
    const std::vector<Sweep::Size> sizes{{4 << 10, true}, {1 << 20, true}};
    const std::size_t collectives = timed_collectives().size();
    for (const double budgets : {1.5, 4.0}) {
      Sweep sweep(world, single, {0.3});
      bool waits = true;
      const auto slow_methods = [&](const TimedCall& call) {
        if (std::exchange(waits, false)) std::this_thread::sleep_for(std::chrono::duration<double>(0.3 * budgets));
        return few_methods(call);
      };
      EXPECT_EQ(sweep.run(sizes, slow_methods), budgets < 3 ? 1 << 20 : 4 << 10);
      EXPECT_EQ(sweep.times().size(), budgets < 3 ? 2 * collectives : 1);
    }
  });
}

// Each size tries what the one before found: of each algorithm the best method, and the same in more lanes or pieces.
TEST(Sweep, TriesAlgorithmsInMoreLanesAndPiecesWhereThereAreMoreBytes) {
  run_threads(2, [](const Communicator& world) {
    Sweep sweep(world, single, {60});
    const auto methods = [](const TimedCall& call) {
      const bool is_sum = call.request().collective == Collective::all_reduce;
      return is_sum ? std::vector<Method>{Algorithm::two_shot, method_from_text("ring*4"), Algorithm::double_binary_tree}
                    : std::vector<Method>{Algorithm::direct};
    };
    const auto tried_last = [&] { return names_of(sweep, Collective::all_reduce); };
    EXPECT_EQ(sweep.run({{4 << 10, false}, {64 << 10, false, 1e9, 3}}, methods), std::nullopt);
    EXPECT_THAT(tried_last(),
                testing::UnorderedElementsAre("two_shot", "ring*4", "double_binary_tree", "double_binary_tree/4"));
    EXPECT_EQ(sweep.run({{128 << 10, false, 1e9, 1}}, methods), std::nullopt);
    EXPECT_LE(tried_last().size(), 2U);
  });
}

}  // namespace
}  // namespace stretto
