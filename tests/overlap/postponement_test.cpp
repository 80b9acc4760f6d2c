// The time of a step with postponed buckets, computed by hand, and the best set of buckets.
#include "overlap/postponement.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>

#include "stretto/stretto.hpp"

namespace stretto {
namespace {

// Flags for the last `postponed` buckets of backward.
std::vector<bool> last(const StepTimes& times, std::size_t postponed) {
  std::vector<bool> flags;
  for (std::size_t b = 0; b < times.buckets.size(); ++b) flags.push_back(b + postponed >= times.buckets.size());
  return flags;
}
double seconds_with(const StepTimes& times, std::size_t postponed) { return step_seconds(times, last(times, postponed)); }
double best_seconds(const StepTimes& times) { return step_seconds(times, best_postponed(times)); }
std::ptrdiff_t best_count(const StepTimes& times) { return std::ranges::count(best_postponed(times), true); }

// Forward takes one second and backward two, with four buckets; each half of a bucket's sum takes `half` seconds.
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
  // Buckets are ready at 1.5, 2, 2.5 and 3, and take 0.25 + 0.25 each: all but the last are hidden.
  EXPECT_DOUBLE_EQ(seconds_with(even(0.25), 0), 3.5);
  // The last bucket's parameters are needed at once and come 0.25 late; in return its second half does not follow backward.
  EXPECT_DOUBLE_EQ(seconds_with(even(0.25), 1), 3.5);
  // The next bucket arrives at 0.5, when forward, 0.25 late, needs it: there is no further wait.
  EXPECT_DOUBLE_EQ(seconds_with(even(0.25), 4), 3.5);
  // The sums end at 1.5 + 4. With the last two postponed they end at 1.5 + 3, but forward waits 0.5 and then 0.25.
  EXPECT_DOUBLE_EQ(seconds_with(even(0.5), 0), 5.5);
  EXPECT_DOUBLE_EQ(seconds_with(even(0.5), 2), 4.5 + 0.75);
  EXPECT_DOUBLE_EQ(seconds_with(even(0), 0), 3);
  EXPECT_DOUBLE_EQ(seconds_with({}, 0), 0);
}

TEST(StepSeconds, SharesTheUpdateOfWhatIsPostponed) {
  EXPECT_DOUBLE_EQ(seconds_with(even(0, 0.1), 0), 3.4);
  EXPECT_DOUBLE_EQ(seconds_with(even(0, 0.1), 1), 3.35);
  EXPECT_DOUBLE_EQ(seconds_with(even(0, 0.1), 4), 3.2);
  EXPECT_DOUBLE_EQ(seconds_with(even(0, 0.1, 4), 4), 3.1);
}

TEST(BestPostponed, PostponesNothingWhereNothingIsGained) {
  EXPECT_EQ(best_count({}), 0);
  EXPECT_EQ(best_count(even(0)), 0);
  EXPECT_EQ(best_count(even(0, 0.1)), 4) << "but for the update";
  EXPECT_EQ(best_count(even(0, 0.1, 1)), 0);
}

// A step of one second in many layers; communication takes 0.9 s.
StepTimes many_layers(int layers) {
  StepTimes times{1, 2, {}};
  for (int i = 0; i < layers; ++i) {
    const double half = 0.45 / layers;
    times.buckets.push_back({.needed = (layers - 1 - i) / 3.0 / layers,
                             .ready = 1 / 3.0 + 2 / 3.0 * (i + 1) / layers,
                             .reduce_scatter = half,
                             .gather_gradients = half,
                             .gather_parameters = half});
  }
  return times;
}

// Backward alone, two thirds of the step, hides at most 0.667 s of communication. Backward and forward together hide all but
// the ends.
TEST(BestPostponed, DividesTheLinkBetweenBackwardAndForward) {
  constexpr int layers = 60;
  const StepTimes times = many_layers(layers);
  EXPECT_GT(best_count(times), 20);
  EXPECT_LT(best_count(times), 50);
  EXPECT_LT(best_seconds(times), 1.02);
  EXPECT_GT(seconds_with(times, 0), 1.2);
  EXPECT_GT(seconds_with(times, layers), 1.1);
}

// A search over single buckets would take hours.
TEST(BestPostponed, IsFoundForLargeModels) {
  constexpr int layers = 20000;
  const StepTimes times = many_layers(layers);
  const std::vector<bool> best = best_postponed(times);
  EXPECT_LT(step_seconds(times, best), 1.03);
  EXPECT_LT(step_seconds(times, best), seconds_with(times, 0));
  EXPECT_LT(step_seconds(times, best), seconds_with(times, layers));
}

// Compares with every possible choice.
TEST(BestPostponed, IsAboutAsGoodAsTheBestOfAll) {
  std::mt19937 generator(1);
  std::uniform_real_distribution<double> some(0.05, 1);
  double worst = 1;
  for (int round = 0; round < 50; ++round) {
    StepTimes times{3, 2, {}};
    const double scale = some(generator);
    for (int i = 0; i < 9; ++i) {
      const double half = scale * some(generator) / 3;
      times.buckets.push_back({.needed = (8 - i) / 9.0,
                               .ready = 1 + 2 * (i + 1) / 9.0,
                               .reduce_scatter = half,
                               .gather_gradients = half,
                               .gather_parameters = half});
    }
    double best = seconds_with(times, 0);
    for (unsigned choice = 0; choice < 512; ++choice) {
      std::vector<bool> flags;
      for (unsigned b = 0; b < 9; ++b) flags.push_back((choice >> b & 1) != 0);
      best = std::min(best, step_seconds(times, flags));
    }
    worst = std::max(worst, best_seconds(times) / best);
  }
  EXPECT_LT(worst, 1.03);
  RecordProperty("worst", std::to_string(worst));
}

}  // namespace
}  // namespace stretto
