#include "stretto/planning/layout_cost.hpp"

#include <gmock/gmock.h>

#include "planning/layout/layout_machine.hpp"
#include "planning/layout/pipeline_time.hpp"
#include "stretto/planning/layout_search.hpp"
#include "support/error.hpp"

namespace stretto {
namespace {

// Blocks of 2 x 4 x 12 x 8 x 8 = 6144 operations forward in products; attention of 10 pairs of 8 columns; logits of 1024.
TrainingOptions tiny_layout(const MeshShape& mesh = {}, std::int64_t global_batch = 1) {
  return {.model = {.layers = 2, .hidden = 8, .heads = 2, .sequence = 4, .vocabulary = 16},
          .mesh = mesh,
          .micro_batch = 1,
          .global_batch = global_batch};
}

double seconds_of(const TrainingOptions& layout, const TrainingCluster& cluster, const TrainingSystem& system = {}) {
  return LayoutCosts(layout.model, cluster, layout.mesh.ranks(), system).cost(layout).seconds;
}

constexpr double block_products = 3 * 6144e-12, block_attention = (4 + 10) * 10 * 8 / 2e12, head_products = 3 * 1024e-12;

TEST(LayoutCost, OfOneRankByHand) {
  const TrainingCluster cluster = machine_without_memory_time();
  EXPECT_NEAR(seconds_of(tiny_layout(), cluster), 2 * (block_products + block_attention) + head_products, 1e-16);
  EXPECT_NEAR(seconds_of(tiny_layout({}, 5), cluster), 5 * (2 * (block_products + block_attention) + head_products), 1e-16);
  TrainingOptions full = tiny_layout();
  full.recompute.level = Recompute::full;  // forward again, but for the last projection
  EXPECT_NEAR(seconds_of(full, cluster) - seconds_of(tiny_layout(), cluster), 2 * (6144e-12 - 2048e-12 + 4 * 10 * 8 / 2e12),
              1e-16);
  EXPECT_NEAR(seconds_of(full, cluster, {.recomputes_whole_blocks = true}) - seconds_of(full, cluster), 2 * 2048e-12, 1e-16);
}

TEST(LayoutCost, CountsTheModelsOperations) {
  const TrainingOptions layout = tiny_layout({}, 5);
  const LayoutCost cost = LayoutCosts(layout.model, machine_without_memory_time(), 1).cost(layout);
  EXPECT_NEAR(cost.tokens_per_second * cost.seconds, 20, 1e-9);
  // Three times the products of the header above, and attention as if nothing were masked, 4 x 8 for each of 4 x 4 pairs.
  EXPECT_EQ(flops_per_token(layout.model), 3 * (2 * (6144 + 4 * 8 * 4 * 4) + 1024) / 4.0);
  EXPECT_NEAR(cost.flops_per_second, cost.tokens_per_second * flops_per_token(layout.model), 1);
  EXPECT_NEAR(cost.mfu, cost.flops_per_second / 2e12, 1e-12);
  EXPECT_EQ(cost.bubble, 0);
  EXPECT_TRUE(cost.exposed.empty());
}

// Of each f32 parameter the update reads the gradient, for the norm once more, reads and writes the value, and 4 bytes of
// each slot.
TEST(LayoutCost, UpdatesMoveTheStateOfTheOptimizer) {
  TrainingCluster cluster = machine_without_memory_time();
  cluster.memory_bytes_per_second = 1e9;
  const auto update_with = [&](const OptimizerOptions& optimizer) {
    TrainingOptions layout = tiny_layout();
    layout.optimizer = optimizer;
    return LayoutCosts(layout.model, cluster, 1).cost(layout).update;
  };
  const double without_slots = update_with(SGD::Options{.momentum = 0});
  EXPECT_GT(without_slots, 0);
  EXPECT_NEAR(update_with(SGD::Options{}) / without_slots, 24.0 / 16, 1e-9);
  EXPECT_NEAR(update_with(AdamW::Options{}) / without_slots, 32.0 / 16, 1e-9);
}

// Muon's products by their formula on top of a pass over memory; two ranks share them.
TEST(LayoutCost, UpdatesOfWholeMatricesTakeTheirProducts) {
  const auto update = [](const OptimizerOptions& optimizer, int ranks) {
    TrainingOptions layout = tiny_layout({{Axis::data, ranks}}, ranks);
    layout.optimizer = optimizer;
    return LayoutCosts(layout.model, machine_without_memory_time(1e30), ranks).cost(layout).update;
  };
  const double with_muon = update(Muon::Options{}, 1);
  EXPECT_GT(with_muon, 2 * update(AdamW::Options{}, 1));
  EXPECT_LT(update(Muon::Options{}, 2), 0.8 * with_muon);
}

// Of 4 x 8 f32, 128 bytes: two in each pass of a block, one for the embeddings and one for the logits' input. Two ranks send
// them in 128 ns, and the three numbers that cross entropy sums of each of 4 tokens in 48.
TEST(LayoutCost, ExchangesOfTensorParallelismByHand) {
  const TrainingOptions layout = tiny_layout({{Axis::tensor, 2}});
  const TrainingSystem blocking{.overlaps_products = false, .overlaps_weights = false};
  LayoutCosts costs(layout.model, machine_without_memory_time(), 2, blocking);
  EXPECT_NEAR(costs.cost(layout).exposed.at("tp"), (2 * 4 + 2) * 128e-9 + 48e-9, 1e-12);
  LayoutCosts overlapping(layout.model, machine_without_memory_time(), 2);
  EXPECT_LT(overlapping.cost(layout).exposed.at("tp"), costs.cost(layout).exposed.at("tp"));
}

// Messages that run beside attention are hidden where it takes longer, and exposed as a whole where they block it.
TEST(LayoutCost, MessagesOfAttentionMayBlockIt) {
  for (const auto& [axis, group] : {std::pair{Axis::ring, "cp"}, {Axis::ulysses, "ulysses"}}) {
    const TrainingOptions layout = tiny_layout({{axis, 2}});
    TrainingCluster slow = machine_without_memory_time(), fast = slow;
    slow.attention_flops = 1e6;
    fast.attention_flops = 1e30;
    const auto exposed = [&layout, group](const TrainingCluster& cluster, bool overlaps) {
      return LayoutCosts(layout.model, cluster, 2, {.overlaps_attention = overlaps}).cost(layout).exposed[group];
    };
    EXPECT_GT(exposed(slow, false), exposed(slow, true));
    EXPECT_DOUBLE_EQ(exposed(slow, false), exposed(fast, true));
    EXPECT_DOUBLE_EQ(exposed(slow, false), exposed(fast, false));
  }
}

// Gradients of 1,936 f32 (parameters()) on two ranks, behind backward.
TEST(LayoutCost, SumsOfGradientsByHand) {
  const TrainingOptions layout = tiny_layout({{Axis::data, 2}}, 2);
  LayoutCosts costs(layout.model, machine_without_memory_time(), 2, {.hidden_sums = 0});
  const double bytes = 4.0 * static_cast<double>(parameters_of(layout.model));
  EXPECT_NEAR(costs.cost(layout).exposed.at("dp"), bytes / 1e9, 0.01 * bytes / 1e9);  // reduce-scatter and all-gather
  TrainingOptions whole = layout;
  whole.sharding.zero = ZeroStage::gradients;
  whole.global_batch = 8;  // sums of each of 4 microbatches, and one gather
  EXPECT_NEAR(costs.cost(whole).exposed.at("dp"), 2.5 * bytes / 1e9, 0.01 * bytes / 1e9);
}

// What travels instead of gradients does so behind backward. The control: sums of gradients take many times as long.
TEST(LayoutCost, ExchangesInsteadOfSumsByHand) {
  TrainingOptions layout = tiny_layout({{Axis::data, 2}}, 2);
  layout.sharding.zero = ZeroStage::none;
  const auto exposed = [&] {
    return LayoutCosts(layout.model, machine_without_memory_time(), 2, {.hidden_sums = 1}).cost(layout).exposed["dp"];
  };
  const auto elements = parameters_of(layout.model);
  const TrainingOptions plain = layout;
  layout.optimizer = OneBitAdam::Options{};
  const auto packed = static_cast<double>(packed_bytes(QuantizedFormat::onebit, elements));
  EXPECT_NEAR(exposed(), packed / 1e9, 0.02 * packed / 1e9);
  layout.optimizer = DeMo::Options{.compression_chunk = 1};  // all of it, in 6 bytes an element
  EXPECT_NEAR(exposed(), 6.0 * static_cast<double>(elements) / 1e9, 0.06 * static_cast<double>(elements) / 1e9);
  layout = plain;
  layout.sharding.powersgd.rank = 1000;  // all of it travels whole
  const double whole = 4.0 * static_cast<double>(elements) / 1e9;
  EXPECT_NEAR(exposed(), whole, 0.01 * whole);
  layout.sharding.powersgd.rank = 1;
  EXPECT_GT(exposed(), 0);
  EXPECT_LT(exposed(), whole / 2);
}

// Nodes of two ranks: data-parallel ranks are two a node, one a node, or with two stages both on one. Backward takes longer
// than sums do.
TEST(LayoutCost, GroupsOfOneRankANodeHideAnotherPartOfTheirSums) {
  TrainingCluster cluster = machine_without_memory_time(1e12);
  cluster.links.levels.front().ranks = 2;
  cluster.links.levels.push_back(cluster.links.levels.front());
  cluster.links.levels.back().ranks = 0;
  const TrainingSystem on_nodes{.hidden_sums = 1, .hidden_sums_between = 0},
      between{.hidden_sums = 0, .hidden_sums_between = 1};
  for (const MeshShape& mesh :
       {MeshShape{{Axis::data, 4}}, {{Axis::tensor, 2}, {Axis::data, 2}}, {{Axis::data, 2}, {Axis::pipeline, 2}}}) {
    const auto exposed = [&](const TrainingSystem& system) {
      TrainingOptions layout = tiny_layout(mesh, 4);
      layout.sharding.unit_bytes = 1;
      return LayoutCosts(layout.model, cluster, 4, system).cost(layout).exposed.at("dp");
    };
    const bool one_a_node = mesh[Axis::tensor] == 2;
    EXPECT_LT(exposed(one_a_node ? between : on_nodes), exposed(one_a_node ? on_nodes : between) / 2) << mesh[Axis::tensor];
    EXPECT_EQ(exposed({.hidden_sums = 0.5}), exposed({.hidden_sums = 0.5, .hidden_sums_between = 0.5}));
  }
}

// A long schedule is simulated by its beginning.
TEST(LayoutCost, ContinuesSchedulesAtTheirPace) {
  for (const ScheduleKind kind : all_schedule_kinds()) {
    if (kind == ScheduleKind::gpipe) continue;
    for (const int stages : {2, 3, 4}) {
      const PipelineShape shape{kind, stages, 12 * stages + (kind == ScheduleKind::interleaved ? 0 : 1), usual_chunks(kind)};
      std::vector<PipelinePart> parts(static_cast<std::size_t>(stages) * static_cast<std::size_t>(shape.chunks));
      std::vector<ScheduleTimes> times;
      for (std::size_t i = 0; i < parts.size(); ++i) {
        parts[i].time.forward.computing = i == 0 ? 1.25 : 1;
        parts[i].time.input.computing = 1;
        parts[i].time.weight.computing = i + 1 == parts.size() ? 1.5 : 1;
        parts[i].message = 0.125;
        times.push_back({parts[i].time.forward.all(), 1, parts[i].time.weight.all(), 0.125});
      }
      Schedules schedules;
      const PipelineTime time = schedules.time(shape, parts, {});
      const double whole = simulate(make_schedule(kind, stages, shape.microbatches, shape.chunks), times).last_end;
      EXPECT_NEAR(time.seconds, whole, 1e-9 * whole) << name(kind) << ", " << stages;
      EXPECT_LE(least_pipeline_time(shape, parts).seconds, whole * (1 + 1e-12)) << name(kind) << ", " << stages;
      EXPECT_LT(shape.beginning().microbatches, shape.microbatches);
    }
  }
}

// One microbatch passes all stages forward and back, and no stage computes beside another.
TEST(LayoutCost, LeastTimeOfOneMicrobatchIsThatOfItsWholeWay) {
  const PipelineShape shape{ScheduleKind::one_forward_one_backward, 3, 1, 1};
  std::vector<PipelinePart> parts(3);
  for (PipelinePart& part : parts) {
    part.time.forward.computing = 1;
    part.time.input.computing = 2;
    part.time.weight.computing = 4;
  }
  EXPECT_EQ(least_pipeline_time(shape, parts).seconds, 3 * (1 + 2 + 4));
}

// Without messages, stages that are alike, and 1f1b: the bubble is (p - 1) / m (Narayanan et al. 2021).
TEST(LayoutCost, BubbleOfAPipelineOfEqualStages) {
  TrainingOptions layout = tiny_layout({{Axis::pipeline, 2}}, 16);
  layout.model.vocabulary = 1;
  layout.model.hidden = 256;
  LayoutCosts costs(layout.model, machine_without_memory_time(1e18), 2);
  EXPECT_NEAR(costs.cost(layout).bubble, 1.0 / 16, 1e-3);
  layout.model.layers = 4;
  layout.stages = {.schedule_name = "interleaved", .virtual_stages = 2};
  EXPECT_NEAR(LayoutCosts(layout.model, machine_without_memory_time(1e18), 2).cost(layout).bubble, 0.5 / 16, 1e-3);
}

TEST(LayoutCost, MemoryIsThatOfTheTrainersPlan) {
  LayoutSpace space{
      .model = {.layers = 4, .hidden = 32, .heads = 4, .sequence = 16, .vocabulary = 24}, .ranks = 8, .global_batch = 32};
  space.sharding.dtype = DType::bf16;
  LayoutCosts costs(space.model, machine_without_memory_time(), space.ranks);
  const std::vector<TrainingOptions> layouts = all_layouts(space, costs);
  ASSERT_GT(layouts.size(), 500U);
  for (std::size_t i = 0; i < layouts.size(); i += 11) {
    const TrainingOptions& layout = layouts[i];
    const Schedule schedule = layout.check();
    std::int64_t most = 0;
    for (int stage = 0; stage < schedule.stages; ++stage) {
      most = std::max(most, plan_stage(layout, schedule, stage).memory.total());
    }
    int stage = -1;
    EXPECT_EQ(costs.memory(layout, &stage).total(), most) << to_string(layout);
    EXPECT_EQ(plan_stage(layout, schedule, stage).memory.total(), most) << to_string(layout);
    EXPECT_LE(costs.least_memory(layout), most) << to_string(layout);
  }
}

// Without a flush: versions, a second set of gradients where stages update together, and what is under way of two steps.
TEST(LayoutCost, MemoryOfVersionsIsThatOfTheTrainersPlan) {
  for (const WindowKind& window : all_window_kinds()) {
    LayoutSpace space{
        .model = {.layers = 4, .hidden = 32, .heads = 4, .sequence = 16, .vocabulary = 24}, .ranks = 8, .global_batch = 32};
    space.model.tied = std::string(window.name).starts_with("2bw");
    space.sharding.dtype = DType::bf16;
    space.schedule = window.name;
    LayoutCosts costs(space.model, machine_without_memory_time(), space.ranks);
    const std::vector<TrainingOptions> layouts = all_layouts(space, costs);
    ASSERT_GT(layouts.size(), 50U) << window.name;
    for (std::size_t i = 0; i < layouts.size(); i += 7) {
      const TrainingOptions& layout = layouts[i];
      EXPECT_LE(layout.sharding.zero, ZeroStage::optimizer);
      const Schedule schedule = layout.check();
      std::int64_t most = 0;
      for (int stage = 0; stage < schedule.stages; ++stage) {
        most = std::max(most, plan_stage(layout, schedule, stage).memory.total());
      }
      EXPECT_EQ(costs.memory(layout).total(), most) << to_string(layout);
      EXPECT_LE(costs.least_memory(layout), most) << to_string(layout);
      TrainingOptions flushes = layout;
      flushes.stages.schedule_name = "1f1b";
      const TrainingMemory with = plan_stage(layout, schedule, 0).memory;
      const TrainingMemory without = plan_stage(flushes, flushes.check(), 0).memory;
      EXPECT_EQ(with.values, versions_of(schedule, 0) * without.values) << to_string(layout);
      EXPECT_EQ(with.gradients, (updates_jointly(schedule) ? 2 : 1) * without.gradients) << to_string(layout);
      EXPECT_GE(with.activations, without.activations) << "another step's tokens";
    }
  }
}

// No stage waits in a window; an update for each microbatch and versions that are copied take time.
TEST(LayoutCost, OfAScheduleWithoutAFlushHasNoBubble) {
  TrainingOptions layout = tiny_layout({{Axis::pipeline, 2}}, 2);
  layout.model.vocabulary = 1;
  layout.model.hidden = 256;
  layout.model.tied = false;
  const TrainingCluster cluster = machine_without_memory_time(1e18);
  const auto cost_of = [&](const char* schedule) {
    layout.stages.schedule_name = schedule;
    return LayoutCosts(layout.model, cluster, 2).cost(layout);
  };
  EXPECT_NEAR(cost_of("1f1b").bubble, 1.0 / 2, 1e-3);
  for (const char* const schedule : {"2bw", "2bw-joint", "pipedream"}) EXPECT_NEAR(cost_of(schedule).bubble, 0, 1e-3);
  EXPECT_GT(cost_of("2bw").update, cost_of("1f1b").update);
  EXPECT_GT(cost_of("pipedream").update, 1.9 * cost_of("2bw").update) << "two updates in a step";
}

// Two ranks on one core: together they take the time of both, and a stage that waits leaves its time to the other.
TEST(LayoutCost, RanksThatTakeTurns) {
  TrainingCluster cluster = machine_without_memory_time(1e18);
  const TrainingOptions data = tiny_layout({{Axis::data, 2}}, 2);
  const double alone = seconds_of(data, cluster);
  TrainingOptions stages = tiny_layout({{Axis::pipeline, 2}}, 1);  // the second stage begins when the first one is done
  const double in_order = seconds_of(stages, cluster);
  stages.global_batch = 8;
  const double of_two = seconds_of(stages, cluster);
  cluster.shared_cores = {2, 1};
  EXPECT_NEAR(seconds_of(data, cluster), 2 * alone, 0.01 * alone);
  EXPECT_NEAR(seconds_of(stages, cluster), 8 * in_order, 0.01 * in_order);
  EXPECT_LT(of_two, 7 * in_order);
  stages.global_batch = 1;
  EXPECT_NEAR(seconds_of(stages, cluster), in_order, 0.01 * in_order);
}

// Adapters of rank 1 in c_attn of two layers: 2 x (8 + 24) of them are summed and updated, whole weights are gathered at
// ZeRO stage 3 only, and no gradient of a frozen weight is computed.
TEST(LayoutCost, OfAdaptersCountsWhatIsTrained) {
  TrainingCluster cluster = machine_without_memory_time();
  cluster.memory_bytes_per_second = 1e9;
  const TrainingSystem shown{.hidden_sums = 0};
  TrainingOptions whole = tiny_layout({{Axis::data, 2}}, 2);
  TrainingOptions adapted = whole;
  adapted.adapters = {.rank = 1};
  const auto cost = [&](TrainingOptions layout, ZeroStage zero) {
    layout.sharding.zero = zero;
    return LayoutCosts(layout.model, cluster, 2, shown).cost(layout);
  };
  const LayoutCost of_whole = cost(whole, ZeroStage::none), of_adapters = cost(adapted, ZeroStage::none);
  const double elements = 2 * (8 + 24);
  EXPECT_NEAR(of_adapters.update / of_whole.update, elements / static_cast<double>(parameters_of(whole.model)), 1e-9);
  EXPECT_NEAR(of_adapters.exposed.at("dp"), 4 * elements * 1e-9, 1e-12);  // (N-1)/N of twice the bytes
  EXPECT_GT(of_whole.exposed.at("dp"), 10 * of_adapters.exposed.at("dp"));
  EXPECT_LT(of_adapters.computing, of_whole.computing);
  EXPECT_GT(cost(adapted, ZeroStage::values).exposed.at("dp"), 10 * cost(adapted, ZeroStage::gradients).exposed.at("dp"));
  EXPECT_LT(of_adapters.memory.total(), of_whole.memory.total());
  LayoutCosts costs(whole.model, cluster, 2);
  costs.time(whole);
  EXPECT_THAT(sentence_of([&] { costs.time(adapted); }), testing::HasSubstr("the same adapters"));
}

TEST(LayoutCost, RefusesGroupsThatNodesCut) {
  TrainingCluster cluster = machine_without_memory_time();
  cluster.links = {{{"node", 4, 0, 0, 1, 4}, {"network", 0, 0, 0, 1}}, 1e21};
  const LayoutCosts costs(tiny_layout().model, cluster, 12);
  EXPECT_THAT(sentence_of([&] {
                costs.check({{Axis::tensor, 3}, {Axis::data, 4}});
              }),
              testing::HasSubstr("Nodes of 4 ranks would cut"));
  costs.check({{Axis::tensor, 4}, {Axis::data, 3}});
}

}  // namespace
}  // namespace stretto
