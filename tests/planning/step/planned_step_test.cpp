// Planned steps whose times are computed by hand.
#include <gmock/gmock.h>

#include "planning/step/planned_clusters.hpp"

namespace stretto {
namespace {

// Links of 1 GB/s without latency between two ranks: an all_reduce of n bytes takes n ns, its halves n/2.
TransformerStep by_hand() {
  TransformerStep step;
  step.layers.assign(2, {1, 2, 0.5});
  step.parameters.assign(2, 250'000'000);  // in f32, 1 s to reduce_scatter and 1 s to all_gather; 0.5 s in bf16
  step.data = {2, 1};
  return step;
}

TEST(PlannedStep, StepsAreAsLongAsTheirHandsSay) {
  const StepCluster cluster = simple_cluster(2, 0, 0.5e9);
  const StepGraph graph = data_parallel_step(by_hand());
  const auto seconds = [&](const StepKnobs& knobs) { return schedule_step(graph, cluster, knobs).predicted_seconds; };
  StepKnobs knobs;
  // Forward 2, backward 4, update 1, two all_reduces of 2.
  knobs.blocking = true;
  EXPECT_NEAR(seconds(knobs), 7 + 4, 1e-6);
  // The first sum is hidden by the first layer's backward; the second takes 2 more and hides the first update.
  knobs.blocking = false;
  EXPECT_NEAR(seconds(knobs), 2 + 4 + 2 + 0.5, 1e-6);
  // A single bucket waits for all gradients, and both updates wait for it.
  knobs.bucket_bytes = std::int64_t{4} << 30;
  EXPECT_NEAR(seconds(knobs), 2 + 4 + 4 + 1, 1e-6);
  // The last bucket is postponed: 1 to reduce_scatter, which hides the other update; this rank's half of its update, 0.25;
  // and the gather, 0.5 in bf16, for which the next step's first layer waits.
  knobs.bucket_bytes = 0;
  knobs.postponed = {false, true};
  EXPECT_NEAR(seconds(knobs), 2 + 4 + 1 + 0.25 + 0.5, 1e-6);
}

TEST(PlannedStep, BucketsAreFilledInTheOrderOfBackward) {
  TransformerStep step = transformer(6, {16, 1});
  step.parameters = {100, 1000, 1, 1, 100, 100};  // in the order of backward: 400 400 4 4 4000 400 bytes
  const auto bytes = [&](std::int64_t bucket, std::int64_t first) {
    StepKnobs knobs;
    knobs.bucket_bytes = bucket;
    knobs.first_bucket_bytes = first;
    std::vector<std::int64_t> all;
    for (const auto& each : schedule_step(data_parallel_step(step), cluster_of(16, 4), knobs).collectives)
      all.push_back(each.bytes);
    return all;
  };
  EXPECT_THAT(bytes(0, 0), testing::ElementsAre(400, 400, 4, 4, 4000, 400));
  EXPECT_THAT(bytes(400, 0), testing::ElementsAre(400, 400, 4008, 400));
  EXPECT_THAT(bytes(401, 0), testing::ElementsAre(800, 4008, 400));
  EXPECT_THAT(bytes(1 << 20, 1), testing::ElementsAre(400, 4808));
}

}  // namespace
}  // namespace stretto
