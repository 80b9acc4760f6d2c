// What other decisions could gain in a step that the trainer has measured (docs/planner.md).
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "overlap/bucket_cut.hpp"
#include "overlap/postponement.hpp"

namespace stretto {
namespace {

// A GPT of 6 layers and 10.8 million parameters on 2 ranks of one core each (train_speed --zero 0 --batch 2 --unit-bytes
// 262144), in the order of backward: the milliseconds at which forward needs a unit, and at which backward has its
// gradients.
constexpr double needed[] = {254.3, 248.2, 246.3, 239.4, 232.8, 225.9, 223.8, 201.4, 179.6, 144.8, 133.3, 104.1, 89.4,
                             78.6,  75.4,  66.1,  57.8,  47.2,  44.0,  34.7,  25.7,  15.8,  12.6,  0.5,   0.2,   0.1};
constexpr double ready[] = {310.0, 338.8, 342.9, 358.1, 374.9, 388.6, 392.6, 408.0, 425.2, 439.2, 443.0, 457.3, 471.4,
                            484.5, 488.2, 501.3, 516.5, 529.4, 533.2, 546.6, 562.2, 575.1, 578.7, 592.8, 593.1, 593.1};
constexpr std::size_t units = std::size(needed);
constexpr std::size_t elements_of_block[] = {590976, 591360, 148608, 443520};
constexpr std::size_t elements_of_ends[] = {99072, 24960};
constexpr double compute_seconds = 0.5932, latency = 0.2e-3, update_seconds_per_byte = 0.54e-9;
constexpr std::size_t mebibyte = std::size_t{1} << 20;

// The same step with units of another size, on links that need `ratio` times as long for the bytes as the computation takes.
StepTimes step_with(double ratio, std::size_t unit_bytes) {
  std::vector<GradientSize> gradients;
  double all = 0;
  for (std::size_t i = 0; i < units; ++i) {
    gradients.push_back({4 * (i < 24 ? elements_of_block[i % 4] : elements_of_ends[i - 24]), DType::f32});
    all += static_cast<double>(gradients.back().bytes);
  }
  StepTimes times{compute_seconds, 2, {}};
  std::size_t first = 0;
  for (const std::size_t end : cut_into_buckets(gradients, unit_bytes, unit_bytes / 2)) {
    double bytes = 0;
    for (std::size_t i = first; i < end; ++i) bytes += static_cast<double>(gradients[i].bytes);
    const double half = latency + ratio * compute_seconds / 2 * bytes / all;
    times.buckets.push_back({.needed = needed[end - 1] * 1e-3,
                             .ready = ready[end - 1] * 1e-3,
                             .reduce_scatter = half,
                             .gather_gradients = half,
                             .gather_parameters = half,
                             .update = update_seconds_per_byte * bytes});
    first = end;
  }
  return times;
}

double chosen_seconds(const StepTimes& times) { return step_seconds(times, best_postponed(times)); }

// The shortest step of all sets of postponed units.
double least_seconds(const StepTimes& times) {
  const std::size_t count = times.buckets.size();
  double least = 1e9;
  std::vector<bool> set(count, false);
  for (unsigned choice = 0; choice < 1U << count; ++choice) {
    for (std::size_t unit = 0; unit < count; ++unit) set[unit] = (choice >> unit & 1) != 0;
    least = std::min(least, step_seconds(times, set));
  }
  return least;
}

TEST(MeasuredStep, HasHardlyABetterSetOfPostponedUnits) {
  const StepTimes times = step_with(0.8, mebibyte);  // where the best set is farthest from all and none
  ASSERT_EQ(times.buckets.size(), 19U);
  EXPECT_LT(chosen_seconds(times), 1.01 * least_seconds(times));
  const StepTimes even = step_with(1, mebibyte);
  EXPECT_GT(step_seconds(even, std::vector<bool>(19, false)), 1.3 * chosen_seconds(even));
}

TEST(MeasuredStep, GainsLittleByUnitsOfOtherSizes) {
  for (const double ratio : {0.25, 0.5, 0.8, 1.0, 2.0, 4.0}) {
    const double usual = chosen_seconds(step_with(ratio, mebibyte));
    for (const std::size_t bytes : {mebibyte / 4, mebibyte / 2, 2 * mebibyte, 4 * mebibyte, 8 * mebibyte}) {
      EXPECT_LT(usual, 1.02 * chosen_seconds(step_with(ratio, bytes))) << ratio << ", " << bytes;
    }
  }
  EXPECT_GT(chosen_seconds(step_with(1, 8 * mebibyte)), 1.1 * chosen_seconds(step_with(1, mebibyte)));
}

}  // namespace
}  // namespace stretto
