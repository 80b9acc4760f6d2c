// The timed loop of stretto-perf: it performs exactly the stated number of operations, in any batches. No test checks a
// duration.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <vector>

#include "perf/iterations.hpp"
#include "perf/measure.hpp"
#include "stretto/launch.hpp"

namespace perf {
namespace {

TEST(Repeated, CopiesTakeTurnsOverBatches) {
  std::vector<int> copies;
  const Action action = repeated(3, [&](int copy) { copies.push_back(copy); });
  action(0, 4);
  action(4, 1);
  action(5, 2);
  EXPECT_EQ(copies, (std::vector{0, 1, 2, 0, 1, 2, 0}));
}

TEST(Measure, PerformsTheWarmupAndTheIterationsOnceEach) {
  stretto::run_threads(2, [](const stretto::Communicator& world) {
    for (const int iterations : {1, 7, 1000}) {
      std::vector<int> numbers;
      const Timing timing = measure(world, {2, iterations}, [&](int first, int count) {
        for (int i = 0; i < count; ++i) numbers.push_back(first + i);
      });
      ASSERT_EQ(static_cast<int>(numbers.size()), 2 + iterations);
      for (int i = 0; i < iterations; ++i) ASSERT_EQ(numbers[2 + i], i);
      EXPECT_LE(timing.p50, timing.p99);
    }
  });
}

TEST(Measure, ALoopOfSecondsHasAsManyIterationsOnEveryRank) {
  stretto::run_threads(3, [](const stretto::Communicator& world) {
    int performed = 0;
    measure(world, {1, 20, 0.001}, [&](int, int count) { performed += count; });
    const std::vector<double> all = to_rank0(world, performed);
    for (const double others : all) EXPECT_EQ(others, performed);
  });
}

TEST(Measure, ShortOperationsAreRepeatedAndLongOnesAreNot) {
  stretto::run_threads(2, [](const stretto::Communicator& world) {
    for (const bool is_long : {false, true}) {
      int performed = 0;
      measure(world, {.iterations = 20, .least_seconds = 1e-3}, [&](int, int count) {
        performed += count;
        if (is_long) std::this_thread::sleep_for(std::chrono::milliseconds(count));
      });
      EXPECT_EQ(performed < 100, is_long) << performed;
    }
  });
}

TEST(IterationsLasting, FitTheSeconds) {
  for (const double each : {1e-7, 3e-5, 2e-3}) {
    const int iterations = iterations_lasting(0.1, [&](int count) { return each * count; });
    EXPECT_NEAR(iterations * each, 0.1, each);
  }
}

TEST(IterationsLasting, AreThreeAtLeast) {
  EXPECT_EQ(iterations_lasting(0.1, [](int count) { return 5.0 * count; }), 3);
}

TEST(IterationsLasting, AnInterruptionIsNotTakenForTheirTime) {
  int trials = 0;
  const int iterations = iterations_lasting(0.1, [&](int count) { return ++trials == 1 ? 0.05 : 1e-6 * count; });
  EXPECT_NEAR(iterations, 100000, 1);
}

}  // namespace
}  // namespace perf
