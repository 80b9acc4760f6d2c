// The graphs of the common steps, and the refusal of invalid graphs.
#include "stretto/planning/step_graph.hpp"

#include <gmock/gmock.h>

#include <set>

#include "planning/step/step_units.hpp"
#include "stretto/error.hpp"
#include "support/error.hpp"

namespace stretto {
namespace {

TransformerStep three_layers() {
  TransformerStep step;
  step.layers = {{1, 2, 0.25}, {3, 4, 0.25}, {5, 6, 0.25}};
  step.parameters = {100, 200, 300};
  step.data = {4, 1};
  return step;
}

std::vector<std::string> names(const StepGraph& graph) {
  std::vector<std::string> all;
  for (const StepNode& node : graph.nodes) all.push_back(node.name);
  return all;
}

double compute_seconds(const StepGraph& graph) {
  double sum = 0;
  for (const StepNode& node : graph.nodes) sum += node.collective ? 0 : node.seconds;
  return sum;
}

const StepNode& named(const StepGraph& graph, const std::string& name) {
  for (const StepNode& node : graph.nodes) {
    if (node.name == name) return node;
  }
  throw std::runtime_error("no node " + name);
}

// "name" for a node of the same step, "name before" for one of the previous step.
std::vector<std::string> waits_for(const StepGraph& graph, const std::string& name) {
  std::vector<std::string> all;
  for (const StepDependency& each : named(graph, name).after) {
    all.push_back(graph.nodes[each.node].name + (each.steps_back == 1 ? " before" : ""));
  }
  return all;
}

TEST(StepGraph, OfDataParallelism) {
  const StepGraph graph = data_parallel_step(three_layers());
  EXPECT_THAT(names(graph),
              testing::ElementsAre("forward 0", "forward 1", "forward 2", "backward 2", "gradients 2", "backward 1",
                                   "gradients 1", "backward 0", "gradients 0", "update 2", "update 1", "update 0"));
  EXPECT_THAT(waits_for(graph, "forward 1"), testing::UnorderedElementsAre("forward 0", "update 1 before"));
  EXPECT_THAT(waits_for(graph, "backward 1"), testing::ElementsAre("backward 2"));
  EXPECT_THAT(waits_for(graph, "gradients 1"), testing::ElementsAre("backward 1"));
  EXPECT_THAT(waits_for(graph, "update 1"), testing::ElementsAre("gradients 1"));
  EXPECT_EQ(named(graph, "gradients 1").collective->elements, 200);
  EXPECT_EQ(named(graph, "gradients 1").collective->kind, Collective::all_reduce);
  EXPECT_DOUBLE_EQ(compute_seconds(graph), 21.75);
}

TEST(StepGraph, OfZero3GathersTwiceButForTheLastLayer) {
  const StepGraph graph = zero3_step(three_layers());
  EXPECT_THAT(names(graph), testing::ElementsAre("gather forward 0", "forward 0", "gather forward 1", "forward 1",
                                                 "gather forward 2", "forward 2", "backward 2", "gradients 2",
                                                 "gather backward 1", "backward 1", "gradients 1", "gather backward 0",
                                                 "backward 0", "gradients 0", "update 2", "update 1", "update 0"));
  EXPECT_THAT(waits_for(graph, "gather forward 1"), testing::ElementsAre("update 1 before"));
  EXPECT_THAT(waits_for(graph, "gather backward 1"), testing::ElementsAre("update 1 before"));
  EXPECT_THAT(waits_for(graph, "forward 1"), testing::UnorderedElementsAre("forward 0", "gather forward 1"));
  EXPECT_THAT(waits_for(graph, "backward 1"), testing::UnorderedElementsAre("backward 2", "gather backward 1"));
  EXPECT_THAT(waits_for(graph, "backward 2"), testing::UnorderedElementsAre("forward 2", "gather forward 2"));
  EXPECT_EQ(named(graph, "gradients 1").collective->kind, Collective::reduce_scatter);
}

TEST(StepGraph, OfTensorParallelismKeepsALayersSeconds) {
  TransformerStep step = three_layers();
  step.data = {1, 8};
  step.tensor = {8, 1};
  step.activations = 1024;
  const StepGraph graph = data_parallel_step(step);
  EXPECT_NEAR(compute_seconds(graph), 21.75, 1e-12);
  std::set<std::string> in_forward;
  for (const StepNode& node : graph.nodes) {
    if (node.layer == 1 && node.phase == Phase::forward) in_forward.insert(node.name);
    if (node.collective) {
      EXPECT_EQ(node.collective->payload, Payload::activation) << node.name;
    }
  }
  EXPECT_THAT(in_forward, testing::UnorderedElementsAre("gather of attention 1", "qkv 1", "attention 1", "projection 1",
                                                        "scatter of attention 1", "gather of mlp 1", "mlp up 1",
                                                        "mlp down 1", "scatter of mlp 1"));
  // Only the update waits for products with respect to weights.
  EXPECT_THAT(waits_for(graph, "mlp up backward 1"), testing::ElementsAre("mlp down backward 1"));
  EXPECT_THAT(waits_for(graph, "scatter of mlp backward 1"), testing::ElementsAre("mlp up backward 1"));
  EXPECT_THAT(waits_for(graph, "mlp up weights 1"), testing::ElementsAre("mlp down backward 1"));
  EXPECT_THAT(waits_for(graph, "update 1"), testing::UnorderedElementsAre("mlp down weights 1", "mlp up weights 1",
                                                                          "projection weights 1", "qkv weights 1"));
  step.data = {4, 8};
  const StepGraph both = data_parallel_step(step);
  EXPECT_THAT(waits_for(both, "update 1"), testing::ElementsAre("gradients 1"));
  EXPECT_EQ(named(both, "gradients 1").collective->group, (StepGroup{4, 8}));
}

TEST(StepGraph, OfBackwardInPartsHasGradientsOfEach) {
  TransformerStep step = three_layers();
  step.backward_parts = 3;
  const StepGraph graph = data_parallel_step(step);
  EXPECT_DOUBLE_EQ(compute_seconds(graph), 21.75);
  std::vector<std::int64_t> elements;
  for (const StepNode& node : graph.nodes) {
    if (node.collective && node.layer == 1) elements.push_back(node.collective->elements);
  }
  EXPECT_THAT(elements, testing::ElementsAre(67, 66, 67));  // 200 in all
  EXPECT_EQ(waits_for(graph, "update 1").size(), 3U);
  step.tensor = {8, 1};
  step.data = {4, 8};
  step.activations = 1024;
  elements.clear();
  for (const StepNode& node : data_parallel_step(step).nodes) {
    if (node.collective && node.layer == 2 && node.collective->payload == Payload::gradient) {
      elements.push_back(node.collective->elements);
    }
  }
  EXPECT_THAT(elements, testing::ElementsAre(100, 100, 25, 75));  // down, up, projection, qkv
}

TEST(StepGraph, RefusesWhatIsNone) {
  StepGraph graph = data_parallel_step(three_layers());
  check(graph);
  const auto refused = [&](const std::string& words, const auto& change) {
    StepGraph wrong = graph;
    change(wrong);
    expect_refusal([&] { check(wrong); }, words);
  };
  refused("which comes after it", [](StepGraph& wrong) { wrong.nodes[3].after.push_back({5}); });
  refused("waits for node 99", [](StepGraph& wrong) { wrong.nodes[3].after.push_back({99}); });
  refused("2 steps before", [](StepGraph& wrong) { wrong.nodes[3].after.push_back({1, 2}); });
  refused("-1 seconds", [](StepGraph& wrong) { wrong.nodes[0].seconds = -1; });
  refused("communicates 0 elements", [](StepGraph& wrong) { wrong.nodes[4].collective->elements = 0; });
  refused("a group of 0 ranks", [](StepGraph& wrong) { wrong.nodes[4].collective->group.size = 0; });
  refused("is a barrier", [](StepGraph& wrong) { wrong.nodes[4].collective->kind = Collective::barrier; });
  refused("at least one has to", [](StepGraph& wrong) { wrong.most_live_gathers = 0; });
  TransformerStep uneven = three_layers();
  uneven.parameters.pop_back();
  expect_refusal([&] { data_parallel_step(uneven); }, "3 layers have the sizes of 2");
  TransformerStep cut = three_layers();
  cut.tensor = {2, 1};
  expect_refusal([&] { data_parallel_step(cut); }, "have 0 activations");
}

}  // namespace
}  // namespace stretto
