#include "collectives/calibration/sweep.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "stretto/launch.hpp"

namespace stretto {
namespace {

constexpr Effort one_call{.looks = 1, .most_calls = 1, .seconds = 0};
constexpr Efforts single{one_call, one_call};

std::vector<Method> few_methods(const TimedCall& call) {
  return call.request().collective == Collective::all_reduce ? std::vector<Method>{Algorithm::ring, Algorithm::two_shot}
                                                             : std::vector<Method>{Algorithm::direct};
}

// The numbers of methods that were timed, by size.
std::vector<std::size_t> methods_of(const Sweep& sweep, Collective collective = Collective::all_reduce) {
  std::vector<std::size_t> numbers;
  for (const CallTimes& times : sweep.times()) {
    if (times.request.collective == collective) numbers.push_back(times.methods.size());
  }
  return numbers;
}

// If the library's choice takes no longer than the bytes alone, the sweep times no other method and no larger vector.
TEST(Sweep, TriesNoMethodThatCannotBeFaster) {
  run_threads(2, [](const Communicator& world) {
    for (const double least : {1e9, 1e-9}) {
      Sweep sweep(world, single, 60);
      EXPECT_TRUE(sweep.run({{4 << 10, false}, {1 << 20, false}, {2 << 20, false}}, few_methods,
                            [&](const TimedCall&) { return least; }));
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
    const auto methods_with = [&](Collective collective, const Method& method, double seconds) {
      Sweep first(world, single, 60);
      EXPECT_TRUE(first.run({{4 << 10, false}}, two_methods));
      std::vector<CallTimes> earlier = first.times();
      for (CallTimes& times : earlier) {
        if (times.request.collective == collective) times.methods = {{method, seconds}, {Algorithm::staged, 1e-6}};
      }
      Sweep again(world, single, 60, earlier);
      EXPECT_TRUE(again.run({{4 << 10, false}}, two_methods));
      return methods_of(again, collective).front();
    };
    const auto once = [&](std::size_t methods, Collective collective, const Method& method) {
      for (int i = 0; i < 50; ++i) {
        if (methods_with(collective, method, 4e-6) == methods) return true;
      }
      return false;
    };
    EXPECT_EQ(methods_with(Collective::broadcast, slow, 2e-6), 2U);
    EXPECT_TRUE(once(1, Collective::broadcast, slow));
    EXPECT_TRUE(once(2, Collective::all_reduce, Algorithm::ring));
  });
}

// What the budget leaves for large calls goes to those first that no measurement has. Only a first measurement may overrun.
TEST(Sweep, BeginsLargeCallsWithThoseThatNoMeasurementHas) {
  run_threads(2, [](const Communicator& world) {
    const std::vector<Sweep::Size> sizes{{4 << 10, true}, {1 << 20, true}, {2 << 20, true}};
    Sweep first(world, single, 60);
    EXPECT_TRUE(first.run(sizes, few_methods));
    std::vector<CallTimes> earlier = first.times();
    const auto is_unknown = [](const CallTimes& times) {
      return times.bytes == 2 << 20 && times.request.collective == Collective::gather && !times.symmetric;
    };
    std::erase_if(earlier, is_unknown);
    Sweep again(world, single, 60, earlier);
    EXPECT_TRUE(again.run(sizes, few_methods));
    std::vector<CallTimes> order = again.times();
    ASSERT_EQ(order.size(), first.times().size());
    const auto begin_of_large =
        std::find_if(order.begin(), order.end(), [](const CallTimes& times) { return times.bytes > 4 << 10; });
    EXPECT_TRUE(is_unknown(*begin_of_large));
    order.erase(begin_of_large);
    EXPECT_TRUE(std::is_sorted(order.begin(), order.end(),
                               [](const CallTimes& a, const CallTimes& b) { return a.bytes < b.bytes; }));
    Sweep without_budget(world, single, -1, earlier);
    EXPECT_TRUE(without_budget.run(sizes, few_methods));
    EXPECT_TRUE(without_budget.times().empty());
    Sweep too_slow(world, single, -1);
    EXPECT_FALSE(too_slow.run(sizes, few_methods));
  });
}

// Each size tries what the one before found: of each algorithm the best method, and the same in more lanes or pieces.
TEST(Sweep, TriesAlgorithmsInMoreLanesAndPiecesWhereThereAreMoreBytes) {
  run_threads(2, [](const Communicator& world) {
    Sweep sweep(world, single, 60);
    const auto methods = [](const TimedCall& call) {
      const bool is_sum = call.request().collective == Collective::all_reduce;
      return is_sum ? std::vector<Method>{Algorithm::two_shot, method_from_text("ring*4"), Algorithm::double_binary_tree}
                    : std::vector<Method>{Algorithm::direct};
    };
    const auto tried_last = [&] {
      std::vector<std::string> names;
      for (const CallTimes& times : sweep.times()) {
        if (times.request.collective != Collective::all_reduce) continue;
        names.clear();
        for (const MethodTime& time : times.methods) names.push_back(to_string(time.method));
      }
      return names;
    };
    EXPECT_TRUE(sweep.run({{4 << 10, false}, {64 << 10, false, 1e9, 3}}, methods));
    EXPECT_THAT(tried_last(),
                testing::UnorderedElementsAre("two_shot", "ring*4", "double_binary_tree", "double_binary_tree/4"));
    EXPECT_TRUE(sweep.run({{128 << 10, false, 1e9, 1}}, methods));
    EXPECT_LE(tried_last().size(), 2U);
  });
}

}  // namespace
}  // namespace stretto
