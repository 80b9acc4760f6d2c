// Invariants of the plan of any step.
#include "stretto/planning/planner.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "planning/step/planned_clusters.hpp"
#include "planning/step/step_timeline.hpp"
#include "support/error.hpp"

namespace stretto {
namespace {

// ---- Invariants of any schedule

// The stages of each collective communicate all of its elements.
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

void expect_sound(const StepGraph& graph, const StepCluster& cluster, double slowdown, bool counts_live) {
  const StepSchedule schedule = plan_step(graph, cluster, slowdown);
  SCOPED_TRACE(schedule.choice());
  EXPECT_LE(schedule.predicted_seconds, schedule.blocking_seconds);
  EXPECT_LE(schedule.predicted_seconds, schedule.unpartitioned_seconds);
  EXPECT_LE(schedule.predicted_seconds, schedule.buckets_seconds);
  EXPECT_LE(schedule.predicted_seconds, schedule.by_level_seconds);
  const double busiest = std::max({schedule.computing_seconds, schedule.inside_seconds, schedule.between_seconds});
  EXPECT_GE(schedule.predicted_seconds, busiest * (1 - 1e-9));
  EXPECT_GE(schedule.predicted_seconds, schedule.bound_seconds * (1 - 1e-9));
  CollectiveCosts costs(cluster);
  const std::vector<StepTask> tasks = lower_step(graph, costs, schedule.knobs, slowdown).tasks;
  const Timeline timeline(graph, schedule, tasks);
  EXPECT_EQ(timeline.fault(), "");
  if (counts_live) {
    EXPECT_LE(timeline.most_live(), graph.most_live_gathers);
  }
  expect_all_bytes(graph, schedule);
  EXPECT_EQ(schedule.to_string(), plan_step(graph, cluster, slowdown).to_string());  // all ranks plan alike
  EXPECT_DOUBLE_EQ(schedule_step(graph, cluster, schedule.knobs, slowdown).predicted_seconds, schedule.predicted_seconds);
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
    const double slowdown = random.maybe() ? 0 : 0.2;
    expect_sound(graph, cluster_of(data * tensor, ranks_per_node, 1 + random.below(2)), slowdown, true);
  }
}

// A graph with random nodes and dependencies.
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
    expect_sound(any_graph(random), cluster_of(16, 4), 0, false);  // gathers may be held over each other's uses
  }
}

TEST(Planner, WithoutADependencyTheTimelineIsFaulty) {
  const StepGraph graph = data_parallel_step(transformer(3, {16, 1}));
  const StepCluster cluster = cluster_of(16, 4, 4);  // fast links, which are idle most of the time
  const StepSchedule schedule = plan_step(graph, cluster);
  CollectiveCosts costs(cluster);
  const std::vector<StepTask> tasks = lower_step(graph, costs, schedule.knobs, 0).tasks;
  EXPECT_EQ(Timeline(graph, schedule, tasks).fault(), "");
  int noticed = 0, dropped = 0;
  for (std::size_t task = 0; task < tasks.size(); ++task) {
    std::vector<StepTask> without = tasks;
    if (!without[task].communicates || without[task].postponed || without[task].after.empty()) continue;
    without[task].after = {{0, 1}};
    ++dropped;
    noticed += Timeline(graph, schedule, without).fault().empty() ? 0 : 1;
  }
  EXPECT_GT(dropped, 0);
  EXPECT_EQ(noticed, dropped);
}

TEST(Planner, ThousandRanksAndALargeModel) {
  const StepSchedule schedule = plan_step(data_parallel_step(transformer(48, {1024, 1})), cluster_of(1024, 8));
  EXPECT_LT(schedule.predicted_seconds, schedule.buckets_seconds);
  EXPECT_GT(schedule.reasons.size(), 1U);
  for (const std::string& reason : schedule.reasons) EXPECT_THAT(schedule.to_string(), testing::HasSubstr(reason));
}

// ---- Refusals

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
  StepGraph global = graph;
  for (StepNode& node : global.nodes) node.elementwise = false;
  knobs = {};
  knobs.postponed = {false, true};
  expect_refusal([&] { schedule_step(global, cluster, knobs); }, "postpone less");
  knobs.postponed = {false, true, false};
  expect_refusal([&] { schedule_step(graph, cluster, knobs); }, "3 flags of what is postponed for 2 buckets");
}

}  // namespace
}  // namespace stretto
