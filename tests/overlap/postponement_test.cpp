// How long a step takes with so many buckets postponed, by hand, and which number is best.
#include "stretto/overlap/postponement.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "stretto/stretto.hpp"

namespace stretto {
namespace {

// Three seconds, one of forward and two of backward, in four buckets; each half of a bucket's sum takes so long.
StepTimes even(double half, double update = 0, int ranks = 2) {
  StepTimes times{3, ranks, {}};
  for (int i = 0; i < 4; ++i) {
    times.buckets.push_back({.needed = 0.25 * (3 - i),
                             .ready = 1 + 0.5 * (i + 1),
                             .reduce_scatter = half,
                             .gather_gradients = half,
                             .gather_parameters = half,
                             .update = update});
  }
  return times;
}

TEST(StepSeconds, AreThoseOfTheTwoPhases) {
  // Ready at 1.5, 2, 2.5 and 3, and sent in 0.25 + 0.25 each: all but the last are hidden.
  EXPECT_DOUBLE_EQ(step_seconds(even(0.25), 0), 3.5);
  // The last bucket's parameters are needed at once, and 0.25 late; its second half is no more behind backward.
  EXPECT_DOUBLE_EQ(step_seconds(even(0.25), 1), 3.5);
  // The next arrives at 0.5, when forward, 0.25 late, needs it: no further wait.
  EXPECT_DOUBLE_EQ(step_seconds(even(0.25), 4), 3.5);
  // Sums end at 1.5 + 4; with the last two postponed at 1.5 + 3, but forward waits 0.5 and 0.25 more.
  EXPECT_DOUBLE_EQ(step_seconds(even(0.5), 0), 5.5);
  EXPECT_DOUBLE_EQ(step_seconds(even(0.5), 2), 4.5 + 0.75);
  EXPECT_DOUBLE_EQ(step_seconds(even(0), 0), 3);
  EXPECT_DOUBLE_EQ(step_seconds({}, 0), 0);
}

TEST(StepSeconds, SharesTheUpdateOfWhatIsPostponed) {
  EXPECT_DOUBLE_EQ(step_seconds(even(0, 0.1), 0), 3.4);
  EXPECT_DOUBLE_EQ(step_seconds(even(0, 0.1), 1), 3.35);
  EXPECT_DOUBLE_EQ(step_seconds(even(0, 0.1), 4), 3.2);
  EXPECT_DOUBLE_EQ(step_seconds(even(0, 0.1, 4), 4), 3.1);
}

TEST(BestPostponed, PostponesNothingWhereNothingIsGained) {
  EXPECT_EQ(best_postponed({}), 0U);
  EXPECT_EQ(best_postponed(even(0)), 0U);
  EXPECT_EQ(best_postponed(even(0, 0.1)), 4U) << "but for the update";
  EXPECT_EQ(best_postponed(even(0, 0.1, 1)), 0U);
}

// Many layers, and communication 0.9 of computation: behind backward alone two thirds of the step hide at most 0.667 of it;
// divided between backward and forward all but the ends.
TEST(BestPostponed, DividesTheLinkBetweenBackwardAndForward) {
  constexpr int layers = 60;
  StepTimes times{1, 2, {}};
  for (int i = 0; i < layers; ++i) {
    const double half = 0.45 / layers;
    times.buckets.push_back({.needed = (layers - 1 - i) / 3.0 / layers,
                             .ready = 1 / 3.0 + 2 / 3.0 * (i + 1) / layers,
                             .reduce_scatter = half,
                             .gather_gradients = half,
                             .gather_parameters = half});
  }
  const std::size_t best = best_postponed(times);
  EXPECT_GT(best, 20U);
  EXPECT_LT(best, 60U);
  EXPECT_LT(step_seconds(times, best), 1.05);
  EXPECT_GT(step_seconds(times, 0), 1.2);
  EXPECT_GT(step_seconds(times, layers), 1.1);
}

// Every rank gets the same numbers: of computation the largest, of communication the least.
TEST(StepMeasurement, IsTheSameOnAllRanks) {
  run_threads(3, [](const Communicator& world) {
    const Tensor memory = Tensor::symmetric({3000}, DType::f32);
    memory.zero();
    const std::vector<Tensor> gradients{memory.view(0, {1000}), memory.view(1000, {2000})};
    GradientBuckets buckets(gradients, world, Stream("dp"), {.bucket_bytes = 4, .scatter = true});
    StepMeasurement measurement(2);
    measurement.needed(1);
    measurement.needed(0);
    buckets.ready(0);
    buckets.ready(1);
    measurement.computed();
    buckets.finish();
    measurement.updated(world.rank() + 1);
    const StepTimes times = measurement.of(buckets, gradients, 2);
    ASSERT_EQ(times.buckets.size(), 2U);
    EXPECT_EQ(times.ranks, 3);
    EXPECT_DOUBLE_EQ(times.buckets[0].update, 1);  // a third of the slowest rank's
    EXPECT_DOUBLE_EQ(times.buckets[1].update, 2);
    for (const BucketTimes& bucket : times.buckets) {
      EXPECT_GE(bucket.needed, 0);
      EXPECT_GE(bucket.ready, bucket.needed);
      EXPECT_LE(bucket.ready, times.compute);
      EXPECT_GT(bucket.reduce_scatter, 0);
      EXPECT_GT(bucket.gather_gradients, 0);
      EXPECT_EQ(bucket.gather_parameters, bucket.gather_gradients / 2);
    }
    std::vector<double> numbers{times.compute, times.buckets[0].ready, times.buckets[1].reduce_scatter};
    const std::vector<double> mine = numbers;
    world.broadcast(numbers.data(), numbers.data(), 3, DType::f64, 0, Stream::inline_());
    EXPECT_EQ(numbers, mine);
  });
}

}  // namespace
}  // namespace stretto
