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
