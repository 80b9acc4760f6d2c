#include "collectives/calibration/sweep.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "stretto/launch.hpp"

namespace stretto {
namespace {

constexpr Effort one_call{.looks = 1, .most_calls = 1, .seconds = 0};
constexpr Efforts single{one_call, one_call, one_call};

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

// If the library's choice takes no longer than the bytes alone, the sweep times no other method and no larger vector.
TEST(Sweep, TriesNoMethodThatCannotBeFaster) {
  run_threads(2, [](const Communicator& world) {
    for (const double least : {1e9, 1e-9}) {
      Sweep sweep(world, single, 60);
      for (const std::int64_t bytes : {4 << 10, 1 << 20, 2 << 20}) {
        EXPECT_TRUE(sweep.add({bytes, 0, 0}, false, few_methods, [&](const TimedCall&) { return least; }));
      }
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

// The sweep does not time a method that an earlier measurement found far behind. It times one that was not measured earlier.
TEST(Sweep, LeavesOutWhatWasFarBehindEarlier) {
  run_threads(2, [](const Communicator& world) {
    const auto times_with = [&](double of_ring) {
      Sweep first(world, single, 60);
      EXPECT_TRUE(first.add({4 << 10, 0, 0}, false, few_methods));
      std::vector<CallTimes> earlier = first.times();
      for (CallTimes& times : earlier) {
        if (times.request.collective != Collective::all_reduce) continue;
        times.methods = {{Algorithm::ring, of_ring}, {Algorithm::staged, 1e-6}};
      }
      Sweep again(world, single, 60, earlier);
      EXPECT_TRUE(again.add({4 << 10, 0, 0}, false, few_methods));
      return methods_of(again);
    };
    EXPECT_EQ(times_with(2e-6), std::vector<std::size_t>{2});
    EXPECT_EQ(times_with(4e-6), std::vector<std::size_t>{1});
  });
}

// Each size tries what the last one found: of each algorithm the best method, and the same in more lanes or pieces.
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
    EXPECT_TRUE(sweep.add({4 << 10, 0, 0}, false, methods));
    EXPECT_TRUE(sweep.add({64 << 10, 1e9, 3}, false, methods));
    EXPECT_THAT(tried_last(),
                testing::UnorderedElementsAre("two_shot", "ring*4", "double_binary_tree", "double_binary_tree/4"));
    EXPECT_TRUE(sweep.add({128 << 10, 1e9, 1}, false, methods));
    EXPECT_LE(tried_last().size(), 2U);
  });
}

}  // namespace
}  // namespace stretto
