// Plans of steps: exact ones, and what holds for any.
#include "stretto/overlap/planner.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "overlap/refusal.hpp"
#include "overlap/step_timeline.hpp"
#include "stretto/cost.hpp"
#include "stretto/error.hpp"

namespace stretto {
namespace {

// Nodes of so many ranks: 200 GB/s inside, ports of 25 GB/s between.
StepCluster cluster_of(int ranks, int ranks_per_node, int ports = 1) {
  return {
      link_model_from_text(fmt::format(
          R"({{"levels": [{{"name": "node", "ranks": {}, "alpha_us": 1, "overhead_us": 0.2, "bandwidth_gbs": 200, "ports": {}}},
                              {{"name": "network", "alpha_us": 5, "overhead_us": 0.5, "bandwidth_gbs": 25, "own_ports": true}}], "local_gbs": 2000}})",
          ranks_per_node, ports)),
      ranks};
}

TransformerStep transformer(int layers, StepGroup data, StepGroup tensor = {}) {
  TransformerStep step;
  step.layers.assign(layers, {2e-3, 4e-3, 0.3e-3});
  step.parameters.assign(layers, 12 << 20);
  step.data = data;
  step.tensor = tensor;
  step.activations = 4 << 20;
  return step;
}

// ---- What holds for any schedule

// All of each collective is communicated, in its primitives.
void expect_all_bytes(const StepGraph& graph, const StepSchedule& schedule) {
  std::map<int, int> seen;
  for (const ScheduledCollective& each : schedule.collectives) {
    std::int64_t elements = 0;
    for (const int node : each.nodes) {
      ++seen[node];
      elements += graph.nodes[node].collective->elements;
    }
    for (const auto* stages : {&each.stages, &each.postponed}) {
      for (const StepStage& stage : *stages) {
        std::int64_t whole = elements;
        if (stage.level == StepStage::Level::between) {
          const int on_node = each.kind.group.size / stage.ranks;
          whole = (elements + on_node - 1) / on_node;
        }
        EXPECT_GE(stage.elements * each.partition.chunks, whole) << each.name;
        EXPECT_LE(stage.elements * each.partition.chunks, whole + 2 * each.partition.chunks) << each.name;
      }
    }
    const std::size_t primitives = each.kind.kind == Collective::all_reduce && !each.postponed.empty() ? 2 : 1;
    EXPECT_GE(each.stages.size() + each.postponed.size(), primitives);
  }
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    EXPECT_EQ(seen[static_cast<int>(i)], graph.nodes[i].collective ? 1 : 0) << graph.nodes[i].name;
  }
}

void expect_sound(const StepGraph& graph, const StepCluster& cluster, const PlannerOptions& options, bool counts_live) {
  const StepSchedule schedule = plan_step(graph, cluster, options);
  SCOPED_TRACE(schedule.choice());
  EXPECT_LE(schedule.predicted_seconds, schedule.blocking_seconds);
  EXPECT_LE(schedule.predicted_seconds, schedule.unpartitioned_seconds);
  EXPECT_LE(schedule.predicted_seconds, schedule.buckets_seconds);
  EXPECT_LE(schedule.predicted_seconds, schedule.by_level_seconds);
  const double busiest = std::max({schedule.computing_seconds, schedule.inside_seconds, schedule.between_seconds});
  EXPECT_GE(schedule.predicted_seconds, busiest * (1 - 1e-9));
  EXPECT_GE(schedule.predicted_seconds, schedule.bound_seconds * (1 - 1e-9));
  const Timeline timeline(graph, schedule, schedule.tasks);
  EXPECT_EQ(timeline.fault(), "");
  if (counts_live) {
    EXPECT_LE(timeline.most_live(), graph.most_live_gathers);
  }
  expect_all_bytes(graph, schedule);
  EXPECT_EQ(schedule.to_string(), plan_step(graph, cluster, options).to_string());  // all ranks plan alike
  EXPECT_DOUBLE_EQ(schedule_step(graph, cluster, schedule.knobs, options.slowdown).predicted_seconds,
                   schedule.predicted_seconds);
}

class Random {
 public:
  explicit Random(unsigned seed) : generator_(seed) {}
  int below(int bound) { return std::uniform_int_distribution<int>(0, bound - 1)(generator_); }
  bool maybe() { return below(2) == 1; }
  double seconds() { return std::pow(10.0, -5 + 0.01 * below(300)); }

 private:
  std::mt19937 generator_;
};

TEST(Planner, IsSoundForTransformersOfAnySize) {
  for (unsigned seed = 0; seed < 25; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const int tensor = 1 << random.below(3), data = 1 << random.below(4);
    TransformerStep step = transformer(1 + random.below(5), {data, tensor}, {tensor, 1});
    for (LayerSeconds& layer : step.layers) layer = {random.seconds(), random.seconds(), random.seconds()};
    for (std::int64_t& parameters : step.parameters) parameters = 1 + random.below(1 << (10 + random.below(17)));
    step.activations = 1 + random.below(1 << 24);
    step.chunk_seconds = random.maybe() ? 5e-6 : 1e-3;
    step.most_live_gathers = 1 + random.below(4);
    step.backward_parts = 1 + random.below(3);
    const int ranks_per_node = std::min(data * tensor, 1 << random.below(4));
    const StepGraph graph = random.maybe() ? zero3_step(step) : data_parallel_step(step);
    PlannerOptions options;
    options.slowdown = random.maybe() ? 0 : 0.2;
    expect_sound(graph, cluster_of(data * tensor, ranks_per_node, 1 + random.below(2)), options, true);
  }
}

// Whatever waits for whatever.
StepGraph any_graph(Random& random) {
  StepGraph graph;
  graph.most_live_gathers = 1 + random.below(3);
  const int count = 2 + random.below(14);
  const Collective kinds[] = {Collective::all_reduce, Collective::reduce_scatter, Collective::all_gather,
                              Collective::all_to_all, Collective::broadcast,      Collective::reduce};
  for (int i = 0; i < count; ++i) {
    StepNode node;
    node.name = fmt::format("node {}", i);
    node.layer = i * 3 / count;
    node.phase = static_cast<Phase>(i * 3 / count);
    for (int other = 0; other < count; ++other) {
      if (random.below(5) == 0) node.after.push_back({other, other < i ? random.below(2) : 1});
    }
    if (i > 0 && random.below(3) > 0) {
      node.collective = StepCollective{kinds[random.below(6)],
                                       static_cast<Payload>(random.below(3)),
                                       1 + random.below(1 << 22),
                                       random.maybe() ? DType::f32 : DType::bf16,
                                       {random.maybe() ? 16 : 8, 1}};
      if (random.below(4) == 0) node.collective->measured_seconds = random.seconds();
    } else {
      node.seconds = random.below(5) == 0 ? 0 : random.seconds();
      node.divisible = random.maybe();
      node.chunk_seconds = 1e-6;
      node.elementwise = random.maybe();
    }
    graph.add(std::move(node));
  }
  return graph;
}

TEST(Planner, IsSoundForAnyGraph) {
  for (unsigned seed = 0; seed < 80; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    expect_sound(any_graph(random), cluster_of(16, 4), {}, false);  // gathers may be held over each other's uses
  }
}

TEST(Planner, WithoutADependencyTheTimelineIsFaulty) {
  const StepGraph graph = data_parallel_step(transformer(3, {16, 1}));
  const StepSchedule schedule = plan_step(graph, cluster_of(16, 4, 4));  // links idle most of the time
  EXPECT_EQ(Timeline(graph, schedule, schedule.tasks).fault(), "");
  int noticed = 0, dropped = 0;
  for (std::size_t task = 0; task < schedule.tasks.size(); ++task) {
    std::vector<StepTask> without = schedule.tasks;
    if (!without[task].communicates || without[task].postponed || without[task].after.empty()) continue;
    without[task].after = {{0, 1}};
    ++dropped;
    noticed += Timeline(graph, schedule, without).fault().empty() ? 0 : 1;
  }
  EXPECT_GT(dropped, 0);
  EXPECT_EQ(noticed, dropped);
}

// ---- Steps that can be told by hand

// Links of 1 GB/s without latency between two ranks: an all_reduce of n bytes takes n ns, its halves n/2.
TransformerStep by_hand() {
  TransformerStep step;
  step.layers.assign(2, {1, 2, 0.5});
  step.parameters.assign(2, 250'000'000);  // of 4 bytes: 1 s to reduce and scatter and 1 s to gather, or 0.5 in bf16
  step.data = {2, 1};
  return step;
}

TEST(Planner, StepsAreAsLongAsTheirHandsSay) {
  const StepCluster cluster = simple_cluster(2, 0, 0.5e9);
  const StepGraph graph = data_parallel_step(by_hand());
  const auto seconds = [&](const StepKnobs& knobs) { return schedule_step(graph, cluster, knobs).predicted_seconds; };
  StepKnobs knobs;
  // Forward 2, backward 4, update 1, two all_reduces of 2.
  knobs.blocking = true;
  EXPECT_NEAR(seconds(knobs), 7 + 4, 1e-6);
  // The first under the second layer's backward; then 2 more, with the first update under them.
  knobs.blocking = false;
  EXPECT_NEAR(seconds(knobs), 2 + 4 + 2 + 0.5, 1e-6);
  // One bucket waits for all, and both updates wait for it.
  knobs.bucket_bytes = std::int64_t{4} << 30;
  EXPECT_NEAR(seconds(knobs), 2 + 4 + 4 + 1, 1e-6);
  // The last bucket by halves: 1 to reduce and scatter, while the other is updated; its own half of the update, 0.25; the
  // gather, 0.5 in bf16, for which the next step's first layer waits.
  knobs.bucket_bytes = 0;
  knobs.postponed = 1;
  EXPECT_NEAR(seconds(knobs), 2 + 4 + 1 + 0.25 + 0.5, 1e-6);
}

TEST(Planner, MeasuredSecondsStandForLinks) {
  StepGraph graph = data_parallel_step(by_hand());
  for (StepNode& node : graph.nodes) {
    if (node.collective) node.collective->measured_seconds = 2;
  }
  const StepCluster cluster = simple_cluster(2, 1e-3, 1);  // would take forever
  StepKnobs knobs;
  EXPECT_NEAR(schedule_step(graph, cluster, knobs).predicted_seconds, 2 + 4 + 2 + 0.5, 1e-9);
  knobs.postponed = 1;
  EXPECT_NEAR(schedule_step(graph, cluster, knobs).predicted_seconds, 2 + 4 + 1 + 0.25 + 1, 1e-9);
  EXPECT_LE(plan_step(graph, cluster).predicted_seconds, 2 + 4 + 1 + 0.25 + 1);
}

TEST(Planner, BucketsAreThoseOfGradientBuckets) {
  TransformerStep step = transformer(6, {16, 1});
  step.parameters = {100, 1000, 1, 1, 100, 100};  // from behind: 400 400 4 4 4000 400 bytes
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

// ---- The dimensions of partition

TEST(Planner, ByLevelFewBytesLeaveANode) {
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
    // The call that does the same sends as much between nodes, as its plan says.
    PlanRequest request{Collective::all_reduce, made.method, 0, ranks, std::int64_t{12} << 20};
    if (made.method.algorithm == Algorithm::two_level) {
      request.ranks_per_node = on_node;
      std::vector<int> nodes;
      for (int rank = 0; rank < ranks; ++rank) nodes.push_back(rank / on_node);
      // Chunks are of whole elements for each of the ranks.
      EXPECT_NEAR(make_plan(request).bytes_between_nodes(4, nodes), bytes, partition.chunks == 1 ? 0 : 100);
    }
    return bytes;
  };
  const std::int64_t whole = std::int64_t{12 << 20} * 4;
  const int nodes = ranks / on_node;
  EXPECT_EQ(between({Form::by_level, 1}), 2 * (nodes - 1) * (whole / nodes / on_node));
  EXPECT_EQ(between({Form::by_level, 4}), 2 * (nodes - 1) * (whole / nodes / on_node));
  EXPECT_EQ(between({Form::whole, 1}), 2 * (ranks - 1) * (whole / ranks));
  EXPECT_EQ(between({Form::scatter_gather, 1}), 2 * (ranks - 1) * (whole / ranks));
}

// What a stage is taken to cost is what the simulator of plans says of it. Over several nodes and one level the formula does
// not know how ranks of a node that send at once get in each other's way.
TEST(Planner, StagesCostWhatTheirPlansTakeOnTheLinks) {
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
  between.levels.erase(between.levels.begin());  // each of a node's ranks has a port
  for (const Form form : {Form::whole, Form::scatter_gather, Form::by_level}) {
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

TEST(Planner, GroupsThatShareANodesPortShareItsBandwidth) {
  const auto between = [](StepGroup data, StepGroup tensor, int ports) {
    const StepCluster cluster = cluster_of(32, 8, ports);
    StepKnobs knobs;
    const auto schedule = schedule_step(data_parallel_step(transformer(1, data, tensor)), cluster, knobs);
    for (const ScheduledCollective& each : schedule.collectives) {
      if (each.bucket == 0) return each.stages.at(0).links.between;
    }
    return 0.0;
  };
  // Of 4 ranks on 4 nodes each: alone at a port of eight, or eight at one.
  EXPECT_NEAR(between({4, 8}, {8, 1}, 1) / between({4, 8}, {8, 1}, 8), 8, 0.1);
  EXPECT_GT(between({4, 8}, {8, 1}, 2), between({4, 8}, {8, 1}, 4));
}

TEST(Planner, WithoutPortsOfItsOwnTheNetworkKeepsLinksInsideBusy) {
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
              1e-4);  // not as long as four share it
  EXPECT_NEAR(between().links.between, 4 * static_cast<double>(between().bytes_sent) / 25e9, 1e-4);
}

TEST(Planner, ComputationIsCutAlongWithItsActivations) {
  TransformerStep step = transformer(2, {1, 8}, {8, 1});
  step.activations = 32 << 20;
  const StepGraph graph = tensor_parallel_step(step);
  const StepSchedule schedule = plan_step(graph, cluster_of(8, 8));
  EXPECT_FALSE(schedule.compute_chunks.empty());
  EXPECT_LT(schedule.predicted_seconds, 0.95 * schedule.unpartitioned_seconds);
  PlannerOptions whole;
  whole.may_chunk_compute = false;
  const StepSchedule uncut = plan_step(graph, cluster_of(8, 8), whole);
  EXPECT_TRUE(uncut.compute_chunks.empty());
  EXPECT_LT(schedule.predicted_seconds, uncut.predicted_seconds);
  whole.may_reorder_compute = false;
  EXPECT_FALSE(plan_step(graph, cluster_of(8, 8), whole).knobs.early);
}

TEST(Planner, PostponesOnlyWhatTheProgramCanGather) {
  StepGraph graph = data_parallel_step(transformer(4, {64, 1}));
  const StepCluster cluster = cluster_of(64, 8);
  EXPECT_GT(plan_step(graph, cluster).knobs.postponed, 0);
  EXPECT_EQ(plan_step(graph, cluster, {.most_postponed = 0}).knobs.postponed, 0);
  for (StepNode& node : graph.nodes) node.elementwise = false;
  EXPECT_EQ(plan_step(graph, cluster).knobs.postponed, 0);
}

TEST(Planner, ThousandRanksAndALargeModel) {
  const StepSchedule schedule = plan_step(data_parallel_step(transformer(48, {1024, 1})), cluster_of(1024, 8));
  EXPECT_LT(schedule.predicted_seconds, schedule.buckets_seconds);
  EXPECT_GT(schedule.reasons.size(), 1U);
  for (const std::string& reason : schedule.reasons) EXPECT_THAT(schedule.to_string(), testing::HasSubstr(reason));
}

// ---- What is refused

TEST(Planner, RefusesWhatCannotBe) {
  const StepGraph graph = data_parallel_step(transformer(2, {16, 1}));
  const StepCluster cluster = cluster_of(16, 4);
  CollectiveKind kind;
  for (const StepNode& node : graph.nodes) {
    if (node.collective) kind = kind_of(node);
  }
  StepKnobs knobs;
  knobs.partitions[kind] = {Form::whole, 3};
  expect_refusal([&] { schedule_step(graph, cluster, knobs); }, "choose a power of two");
  knobs.partitions[kind] = {Form::by_level, 2};
  expect_refusal([&] { schedule_step(graph, simple_cluster(16, 0, 1e9), knobs); }, "cannot be done by_level");
  knobs = {};
  knobs.ahead = 2;
  expect_refusal(
      [&] {
        schedule_step(zero3_step(transformer(2, {16, 1})), cluster, knobs);
      },
      "more than the 2 that may be live");
  expect_refusal([&] { plan_step(data_parallel_step(transformer(2, {12, 1})), cluster); }, "does not fit a cluster");
  expect_refusal([&] { plan_step(graph, cluster, {.most_chunks = 6}); }, "choose a power of two");
  StepGraph global = graph;
  for (StepNode& node : global.nodes) node.elementwise = false;
  knobs = {};
  knobs.postponed = 1;
  expect_refusal([&] { schedule_step(global, cluster, knobs); }, "postpone less");
}

}  // namespace
}  // namespace stretto
