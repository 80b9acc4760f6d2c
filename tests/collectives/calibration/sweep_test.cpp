#include "collectives/calibration/sweep.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "stretto/launch.hpp"

namespace stretto {
namespace {

constexpr Effort single{.looks = 1, .most_calls = 1, .seconds = 0};

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
      Sweep sweep(world, single, single, 60);
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

// What is tried at a size by the last one: ring and two_shot, and ring in two lanes.
TEST(Sweep, TriesAlgorithmsInMoreLanesWhereThereAreMoreBytes) {
  run_threads(2, [](const Communicator& world) {
    Sweep sweep(world, single, single, 60);
    EXPECT_TRUE(sweep.add({4 << 10, 0, 0}, false, few_methods));
    EXPECT_TRUE(sweep.add({64 << 10, 1e9, 2}, false, few_methods));
    EXPECT_EQ(methods_of(sweep), (std::vector<std::size_t>{2, 3}));
  });
}

}  // namespace
}  // namespace stretto
