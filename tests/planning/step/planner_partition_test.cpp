// The dimensions in which a step's collectives are partitioned, and the costs of the parts.
#include <gmock/gmock.h>

#include "planning/step/planned_clusters.hpp"
#include "stretto/planning/cost.hpp"

namespace stretto {
namespace {

TEST(PlannerPartition, ByLevelFewBytesLeaveANode) {
  const int ranks = 16, on_node = 4;
  const StepCluster cluster = cluster_of(ranks, on_node);
  const StepGraph graph = data_parallel_step(transformer(1, {ranks, 1}));
  CollectiveKind kind;
  for (const StepNode& node : graph.nodes) {
    if (node.collective) kind = kind_of(node);
  }
  const auto between = [&](const Partition& partition) {
    StepKnobs knobs;
    knobs.partitions[kind] = partition;
    const ScheduledCollective made = schedule_step(graph, cluster, knobs).collectives.at(0);
    std::int64_t bytes = 0;
    for (const StepStage& stage : made.stages) bytes += stage.bytes_between * partition.chunks;
    // The plan of the single equivalent call sends as many bytes between nodes.
    PlanRequest request{Collective::all_reduce, made.method, 0, ranks, std::int64_t{12} << 20};
    if (made.method.algorithm == Algorithm::two_level) {
      request.ranks_per_node = on_node;
      std::vector<int> nodes;
      for (int rank = 0; rank < ranks; ++rank) nodes.push_back(rank / on_node);
      // Chunks round each rank's share to whole elements.
      EXPECT_NEAR(make_plan(request).bytes_between_nodes(4, nodes), bytes, partition.chunks == 1 ? 0 : 100);
    }
    return bytes;
  };
  const std::int64_t whole = std::int64_t{12 << 20} * 4;
  const int nodes = ranks / on_node;
  EXPECT_EQ(between({Form::by_level, 1}), 2 * (nodes - 1) * (whole / nodes / on_node));
  EXPECT_EQ(between({Form::by_level, 4}), 2 * (nodes - 1) * (whole / nodes / on_node));
  EXPECT_EQ(between({Form::whole, 1}), 2 * (ranks - 1) * (whole / ranks));
}

// The assumed cost of a stage agrees with the simulation of its plan. For one level over several nodes the bound is wider:
// the formula ignores the contention of ranks of a node that send at the same time.
TEST(PlannerPartition, StagesCostWhatTheirPlansTakeOnTheLinks) {
  const int ranks = 32, on_node = 8;
  const StepCluster cluster = cluster_of(ranks, on_node, 8);
  const StepGraph graph = data_parallel_step(transformer(1, {ranks, 1}));
  const auto expect_alike = [&](const StepStage& stage, const LinkModel& links, int ranks_per_node) {
    PlanRequest request{stage.collective, stage.method, 0, stage.ranks};
    request.count = counts_shares(stage.collective) ? stage.elements / stage.ranks : stage.elements;
    request.ranks_per_node = ranks_per_node;
    const double ratio = simulate(request, 4, links).seconds / stage.seconds;
    EXPECT_GT(ratio, 0.8) << to_string(stage);
    EXPECT_LT(ratio, stage.level == StepStage::Level::all ? 1.6 : 1.2) << to_string(stage);
  };
  LinkModel inside = cluster.links, between = cluster.links;
  inside.levels.pop_back();
  inside.levels.front() = cluster.links.levels.front();
  inside.levels.front().ports = 1;
  inside.levels.front().ranks = 0;
  between.levels.erase(between.levels.begin());  // each rank of a node has its own port
  for (const Form form : {Form::whole, Form::by_level}) {
    StepKnobs knobs;
    for (const StepNode& node : graph.nodes) {
      if (node.collective) knobs.partitions[kind_of(node)].form = form;
    }
    const StepSchedule schedule = schedule_step(graph, cluster, knobs);
    for (const StepStage& stage : schedule.collectives.at(0).stages) {
      const bool all = stage.level == StepStage::Level::all;
      expect_alike(stage,
                   all                                       ? cluster.links
                   : stage.level == StepStage::Level::inside ? inside
                                                             : between,
                   all ? on_node : 0);
    }
  }
}

TEST(PlannerPartition, GroupsThatShareANodesPortShareItsBandwidth) {
  const auto between = [](StepGroup data, StepGroup tensor, int ports) {
    const StepCluster cluster = cluster_of(32, 8, ports);
    StepKnobs knobs;
    const auto schedule = schedule_step(data_parallel_step(transformer(1, data, tensor)), cluster, knobs);
    for (const ScheduledCollective& each : schedule.collectives) {
      if (each.bucket == 0) return each.stages.at(0).links.between;
    }
    return 0.0;
  };
  // Groups of 4 ranks, one on each of 4 nodes: eight groups share one port, or each has one of eight.
  EXPECT_NEAR(between({4, 8}, {8, 1}, 1) / between({4, 8}, {8, 1}, 8), 8, 0.1);
  EXPECT_GT(between({4, 8}, {8, 1}, 2), between({4, 8}, {8, 1}, 4));
}

TEST(PlannerPartition, WithoutPortsOfItsOwnTheNetworkKeepsLinksInsideBusy) {
  StepCluster cluster = cluster_of(16, 4);
  const StepGraph graph = data_parallel_step(transformer(1, {16, 1}));
  StepKnobs knobs;
  for (const StepNode& node : graph.nodes) {
    if (node.collective) knobs.partitions[kind_of(node)] = {Form::by_level, 1};
  }
  const auto between = [&] { return schedule_step(graph, cluster, knobs).collectives.at(0).stages.at(1); };
  EXPECT_EQ(between().links.inside, 0);
  cluster.links.levels.back().own_ports = false;
  EXPECT_NEAR(between().links.inside, static_cast<double>(between().bytes_sent) / 25e9,
              1e-4);  // one rank's own bytes; the port itself serves four ranks
  EXPECT_NEAR(between().links.between, 4 * static_cast<double>(between().bytes_sent) / 25e9, 1e-4);
}

TEST(PlannerPartition, ComputationIsCutAlongWithItsActivations) {
  TransformerStep step = transformer(2, {1, 8}, {8, 1});
  step.activations = 32 << 20;
  const StepGraph graph = data_parallel_step(step);
  const StepSchedule schedule = plan_step(graph, cluster_of(8, 8));
  EXPECT_FALSE(schedule.compute_chunks.empty());
  EXPECT_LT(schedule.predicted_seconds, 0.95 * schedule.unpartitioned_seconds);
}

}  // namespace
}  // namespace stretto
