// What adapters cost: only their gradients travel, only they have gradients and slots; by closed formula, by the plan, and
// as it is.

#include "matrix.hpp"
#include "stretto/planning/stage_plan.hpp"
#include "support/tiers.hpp"
#include "traffic.hpp"

namespace parity::adapters_plan {
namespace {

// Each matrix [out, in] of a GPT-2's block has rank (in + out) elements of an adapter.
std::int64_t elements_of_adapters(const TrainingOptions& options) {
  const std::int64_t h = options.model.hidden, r = options.adapters.rank;
  return options.model.layers * r * ((h + 3 * h) + (h + h) + (h + 4 * h) + (4 * h + h));
}

TrainingOptions adapted(Layout layout, ZeroStage stage = ZeroStage::none) {
  TrainingOptions options = tiny(layout, DType::f32);
  options.model.vocabulary = 64;  // even shares
  options.sharding.zero = stage;
  options.sharding.measured_steps = 0;
  options.adapters = {.rank = 4, .targets = {"all-linear"}};
  return options;
}

TEST(AdaptersPlan, OnlyTheirGradientsTravel) {
  const Variable ring("STRETTO_ALGO", "all_reduce:ring;reduce_scatter:ring;all_gather:ring");
  for (const int ranks : {2, 4}) {
    for (const ZeroStage stage : {ZeroStage::none, ZeroStage::optimizer, ZeroStage::gradients}) {
      const Layout layout{.data = ranks};
      TrainingOptions options = adapted(layout, stage);
      options.global_batch = ranks;
      for (const Trace& trace : train(layout, options)) {
        std::map<std::string, std::int64_t> sent;
        for (const Record& record : trace.records) {
          sent[record.tag == "parameters" ? "gradients" : record.tag] += static_cast<std::int64_t>(record.bytes_sent);
        }
        // A reduce-scatter in each microbatch, of which there is one, and an all-gather, of 4 bytes each.
        EXPECT_EQ(sent["gradients"], 2 * 4 * elements_of_adapters(options) * (ranks - 1) / ranks);
        sent.erase("gradients");
        for (const auto& [tag, bytes] : sent) EXPECT_TRUE(tag == "gradient norm" || tag == "loss") << tag;
      }
    }
  }
}

// No exchange is added in layers, and those that only gradients of frozen weights need are left out: of embeddings.
TEST(AdaptersPlan, TellsTheBytesThatAStepSends) {
  const Variable ring("STRETTO_ALGO", "all_reduce:ring;reduce_scatter:ring;all_gather:ring");
  for (const Layout layout :
       of_today({Layout{.data = 2}, {.tensor = 2}, {.data = 2, .tensor = 2}, {.tensor = 2, .pipeline = 2}}, 3)) {
    for (const char* const schedule : {"1f1b", "zb-h1"}) {
      if (layout.pipeline == 1 && schedule[0] == 'z') continue;
      for (const int rows : {0, 1, 2}) {  // whole, own, own and kept
        if (rows > 0 && layout.tensor == 1) continue;
        for (const Recompute level : {Recompute::none, Recompute::full}) {
          TrainingOptions options = adapted(layout);
          options.global_batch = 2L * layout.data;
          options.divides_rows = rows > 0;
          options.keeps_gathered = rows == 2;
          options.recompute.level = level;
          options.stages.schedule_name = schedule;
          const TrainingOptions on = options.on(layout.mesh());
          const StagePlan plan = plan_stage(on, on.check(), 0);
          EXPECT_EQ(sent_by({train(layout, options).front()}), plan.sent)
              << schedule << " " << layout.data << "x" << layout.tensor << "x" << layout.pipeline << ", rows " << rows
              << ", recompute " << static_cast<int>(level);
        }
      }
    }
  }
}

// By formula, in the plan, and measured: 4 bytes a gradient and 8 of AdamW. The control: the whole model has more.
TEST(AdaptersPlan, HoldsNoGradientAndNoSlotOfTheBase) {
  for (const bool adapts : {true, false}) {
    TrainingOptions options = adapted({});
    if (!adapts) options.adapters = {};
    const std::int64_t trained = elements_of_adapters(adapted({}));
    const TrainingOptions on = options.on(Layout{}.mesh());
    const StagePlan plan = plan_stage(on, on.check(), 0);
    EXPECT_EQ(plan.memory.gradients == 4 * trained, adapts);
    EXPECT_EQ(plan.memory.optimizer == 8 * trained, adapts);
    run_threads(1, [&](const Communicator& world) {
      const auto held = [](MemoryKind kind) { return static_cast<std::int64_t>(memory_use(kind).bytes); };
      const std::int64_t gradients = held(MemoryKind::gradients), slots = held(MemoryKind::optimizer);
      Trainer trainer(Mesh(world, {}), options);
      advance(trainer, 0, 1);
      EXPECT_EQ(held(MemoryKind::gradients) - gradients, plan.memory.gradients);
      EXPECT_EQ(held(MemoryKind::optimizer) - slots, plan.memory.optimizer);
    });
  }
}

// The copy that is written in the background has the adapters' values and slots, 12 bytes each; the control: of a checkpoint
// that holds the base, too, all.
TEST(AdaptersPlan, CopiesNoFrozenBaseForTheBackground) {
  TrainingOptions options = adapted({});
  const auto buffers = [&] {
    const TrainingOptions on = options.on(Layout{}.mesh());
    return plan_stage(on, on.check(), 0).memory.buffers;
  };
  const std::int64_t without = buffers();
  options.saves_in_background = options.saves_trained_only = true;
  EXPECT_EQ(buffers() - without, 12 * elements_of_adapters(options));
  options.saves_trained_only = false;
  EXPECT_GT(buffers() - without, 4 * parameters_of(options.model));
}

// Products of frozen weights' gradients are none, and those of adapters are counted.
TEST(AdaptersPlan, CountsTheProductsOfABlock) {
  const TrainingOptions options = adapted({});
  const auto operations = [&](const AdapterOptions& adapters) {
    return decoder_cost(options.model, {}, {}, {.count = 1}, adapters).block;
  };
  const LayerCost plain = operations({}), with = operations(options.adapters);
  const auto elements = static_cast<double>(elements_of_adapters(options)) / static_cast<double>(options.model.layers);
  EXPECT_EQ(with.parameters - plain.parameters, static_cast<std::int64_t>(elements));
  EXPECT_EQ(with.forward.operations(), plain.forward.operations() + 2 * elements);
  EXPECT_EQ(with.input.operations(), plain.input.operations() + 2 * elements);
  EXPECT_EQ(with.weight.operations(), 4 * elements);
  // The control: the whole model's.
  EXPECT_EQ(plain.weight.operations(), plain.forward.operations());
}

}  // namespace
}  // namespace parity::adapters_plan
