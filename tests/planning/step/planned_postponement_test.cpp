// The buckets that a plan postpones, and the time of a step with them.
#include <gmock/gmock.h>

#include <algorithm>

#include "planning/step/planned_clusters.hpp"

namespace stretto {
namespace {

// Two ranks, four layers, in seconds: forward 4, backward 8; each half of each layer's sum takes 2, and a postponed gather
// too.
StepGraph four_layers() {
  TransformerStep step;
  step.layers.assign(4, {1, 2, 0});
  step.parameters.assign(4, 500'000'000);
  step.data = {2, 1};
  step.parameter_dtype = DType::f32;
  return data_parallel_step(step);
}
StepCluster slow_links() { return simple_cluster(2, 0, 0.5e9); }

StepSchedule with(const StepGraph& graph, const StepCluster& cluster, StepKnobs knobs, std::vector<bool> postponed) {
  knobs.postponed = std::move(postponed);
  return schedule_step(graph, cluster, knobs);
}
double seconds_with(const std::vector<bool>& postponed) {
  return with(four_layers(), slow_links(), {}, postponed).predicted_seconds;
}

TEST(PlannedPostponement, OfAnyBucketsTakesWhatHandsSay) {
  // The first gradients are ready 2 after forward; then the link is busy for 16.
  EXPECT_NEAR(seconds_with({}), 4 + 2 + 16, 1e-6);
  EXPECT_NEAR(seconds_with({false, false, false, false}), 4 + 2 + 16, 1e-6);
  // The sums end 14 after forward. The first layer waits 2 for its parameters; the third layer's arrive just in time.
  EXPECT_NEAR(seconds_with({false, true, false, true}), 4 + 2 + 12 + 2, 1e-6);
  // The gathers of the first two layers follow each other: the first layer waits 2, the second 1.
  EXPECT_NEAR(seconds_with({false, false, true, true}), 4 + 2 + 12 + 2 + 1, 1e-6);
  // Only the fourth layer is postponed: its parameters arrive in time, and the sums end 16 after forward.
  EXPECT_NEAR(seconds_with({true, false, false, false}), 4 + 2 + 14, 1e-6);
  // Three gathers take 6 from the beginning of forward: the first layer waits 2, the fourth 1.
  EXPECT_NEAR(seconds_with({true, true, false, true}), 4 + 2 + 10 + 2 + 1, 1e-6);
  // All buckets are postponed: forward follows the gathers, which take 8, and the halves of the sums take 8 more.
  EXPECT_NEAR(seconds_with({true, true, true, true}), 8 + 1 + 2 + 8, 1e-6);
}

TEST(PlannedPostponement, IsSaidInRuns) {
  const StepSchedule spread = with(four_layers(), slow_links(), {}, {true, true, false, true});
  EXPECT_THAT(spread.to_string(), testing::HasSubstr("postponed 0-1 3 of 4,"));
  EXPECT_THAT(spread.choice(), testing::HasSubstr("3 postponed"));
  EXPECT_THAT(with(four_layers(), slow_links(), {}, {}).to_string(), testing::HasSubstr("postponed none,"));
  for (const ScheduledCollective& each : spread.collectives) EXPECT_EQ(each.postponed.empty(), each.bucket == 2);
}

int bucket_count(const StepSchedule& schedule) {
  int count = 0;
  for (const ScheduledCollective& each : schedule.collectives) count = std::max(count, each.bucket + 1);
  return count;
}

// The shortest step that these knobs give with none or any number of the last buckets postponed.
double best_of_last(const StepGraph& graph, const StepCluster& cluster, StepKnobs knobs) {
  const auto buckets = static_cast<std::size_t>(bucket_count(with(graph, cluster, knobs, {})));
  double best = with(graph, cluster, knobs, {}).predicted_seconds;
  for (std::size_t last = 1; last <= buckets; ++last) {
    std::vector<bool> set(buckets, false);
    std::fill(set.end() - static_cast<std::ptrdiff_t>(last), set.end(), true);
    best = std::min(best, with(graph, cluster, knobs, set).predicted_seconds);
  }
  return best;
}

TEST(PlannedPostponement, IsNoWorseThanOfTheLastBuckets) {
  constexpr double given_back = 1.001;  // the planner gives up 0.1% for simpler knobs
  for (const double bytes_per_second : {1e9, 3e9, 6e9, 12e9, 50e9}) {
    for (const int layers : {4, 11}) {
      SCOPED_TRACE(fmt::format("{} layers, {} bytes a second", layers, bytes_per_second));
      const StepGraph graph = data_parallel_step(transformer(layers, {8, 1}));
      const StepCluster cluster = simple_cluster(8, 10e-6, bytes_per_second);
      const StepSchedule planned = plan_step(graph, cluster);
      StepKnobs knobs = planned.knobs;
      EXPECT_LE(planned.predicted_seconds, best_of_last(graph, cluster, knobs) * given_back);
      knobs.bucket_bytes = knobs.first_bucket_bytes = 0;
      EXPECT_LE(planned.predicted_seconds, best_of_last(graph, cluster, knobs) * given_back);
      knobs.bucket_bytes = std::int64_t{100} << 20;
      EXPECT_LE(planned.predicted_seconds, best_of_last(graph, cluster, knobs) * given_back);
    }
  }
}

TEST(PlannedPostponement, IsBetterSpreadThanOfTheLastBuckets) {
  TransformerStep step = transformer(16, {8, 1});
  step.parameter_dtype = DType::f32;
  for (LayerSeconds& layer : step.layers) layer.update = 0;
  const StepGraph graph = data_parallel_step(step);
  const StepCluster cluster = simple_cluster(8, 0, 16.5e9);  // communication takes 0.9 of the computation's time
  const StepSchedule planned = plan_step(graph, cluster);
  EXPECT_LT(planned.predicted_seconds, 0.97 * best_of_last(graph, cluster, planned.knobs));
}

TEST(PlannedPostponement, PostponesOnlyElementwiseUpdates) {
  StepGraph graph = data_parallel_step(transformer(4, {64, 1}));
  const StepCluster cluster = cluster_of(64, 8);
  EXPECT_FALSE(plan_step(graph, cluster).knobs.postponed.empty());
  for (StepNode& node : graph.nodes) node.elementwise = false;
  EXPECT_TRUE(plan_step(graph, cluster).knobs.postponed.empty());
}

}  // namespace
}  // namespace stretto
