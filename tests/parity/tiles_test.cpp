// Linear layers in tiles train as whole ones do, in every layout that allows them.
#include <gmock/gmock.h>

#include "adapted.hpp"
#include "parity.hpp"
#include "stretto/layers/checkpoint.hpp"
#include "stretto/planning/stage_plan.hpp"
#include "support/error.hpp"
#include "support/temporary_directory.hpp"
#include "support/tiers.hpp"

namespace parity::tiles {
namespace {

TrainingOptions tiled(Layout layout, int tiles, DType dtype = DType::f64) {
  TrainingOptions options = tiny(layout, dtype);
  options.sharding.zero = ZeroStage::values;
  options.tiles = tiles;
  return options;
}

TEST(Tiles, TrainAsOneRankDoes) {
  for (const Layout layout : of_today({Layout{}, {.data = 2}, {.data = 2, .tensor = 2}, {.data = 2, .ring = 2}})) {
    for (const int tiles : of_today({1, 2, 4, 8}, 3)) {
      for (const Recompute level : {Recompute::none, Recompute::full}) {
        TrainingOptions options = tiled(layout, tiles);
        options.recompute.level = level;
        for (const Trace& trace : train(layout, options)) {
          EXPECT_EQ(compare(of_one_rank(options), trace, parity_tolerance).all(), "")
              << layout.data << "x" << layout.tensor << ", " << tiles << " tiles";
        }
      }
    }
  }
}

// The control: a tile whose values are lost.
TEST(Tiles, AreAllOfTheWeight) {
  const Layout layout{.data = 2};
  const TrainingOptions options = tiled(layout, 4);
  const std::vector<Trace> traces = train(layout, options, [](Trainer& trainer) {
    for (const ShardedParameters::Range& range : trainer.sharded().ranges()) {
      if (trainer.parameters().all()[range.parameter]->name == "h.1.mlp.c_fc.weight.tile2") range.value.zero();
    }
    trainer.sharded().share_values();
  });
  EXPECT_NE(compare(of_one_rank(options), traces.front(), parity_tolerance).loss, "");
}

// Gradients of inputs are rounded to 16 bits once, not for each tile.
TEST(Tiles, TrainInAllTypes) {
  for (const auto& [dtype, tolerance] : {std::pair{DType::f32, 1e-4}, {DType::bf16, 2e-2}, {DType::f16, 2e-2}}) {
    const Layout layout{.data = 2, .tensor = 2};
    const Trace whole = train(layout, tiled(layout, 1, dtype)).front(),
                tiles = train(layout, tiled(layout, 4, dtype)).front();
    EXPECT_EQ(Comparer(tolerance).numbers(whole.losses, tiles.losses, "loss"), "") << training_name(dtype);
    EXPECT_EQ(Comparer(tolerance).numbers(whole.norms, tiles.norms, "norm"), "") << training_name(dtype);
  }
}

TEST(Tiles, OfValuesInFilesHaveTheBitsOfMemory) {
  const TemporaryDirectory directory;
  for (const Layout layout : {Layout{}, {.data = 2}, {.data = 2, .tensor = 2}}) {
    TrainingOptions options = tiled(layout, 4, DType::f32);
    const std::vector<Trace> expected = train(layout, options);
    options.sharding.offload = {
        .optimizer = {directory.path()}, .gradients = {directory.path()}, .values = {directory.path()}};
    EXPECT_EQ(divergence(expected, train(layout, options)), "");
  }
}

// Halves of backward, and tiles that each microbatch gathers again.
TEST(Tiles, GoThroughPipelinesWithValuesInFiles) {
  const TemporaryDirectory directory;
  const Layout layout{.data = 2, .pipeline = 2};
  for (const char* const schedule : {"1f1b", "zb-h1"}) {
    TrainingOptions options = tiled(layout, 4);
    options.global_batch = 4L * layout.data;
    options.stages.schedule_name = schedule;
    options.sharding.offload.values = {directory.path()};
    TrainingOptions one = options;
    one.sharding.offload = {};
    std::string text;
    const std::vector<Trace> traces = train(layout, options);
    for (const Trace& trace : traces) {
      text += compare(of_one_rank(one), trace, parity_tolerance, Has::those_of_its_stage).all();
    }
    EXPECT_EQ(text + missing(of_one_rank(one), traces), "") << schedule;
  }
}

TEST(Tiles, HaveAdapters) {
  for (const Layout layout : {Layout{.data = 2}, {.data = 2, .tensor = 2}}) {
    TrainingOptions options = tiled(layout, 4);
    options.adapters = all_linear();
    EXPECT_EQ(adapted_divergence(adapted_on_one_rank(options), layout, options), "");
  }
}

// A checkpoint of tiles is one of whole weights, and the reverse.
TEST(Tiles, ReadAndWriteCheckpointsOfWholeWeights) {
  for (const auto& [from, to] : std::vector<std::pair<int, int>>{{4, 1}, {1, 8}, {2, 4}}) {
    const TemporaryDirectory saved;
    const Layout layout{.data = 2, .tensor = 2};
    std::vector<double> expected, losses;
    run_threads(layout.ranks(), [&, from = from](const Communicator& world) {
      Trainer trainer(Mesh(world, layout.mesh()), tiled(layout, from));
      advance(trainer, 0, 2);
      save_checkpoint(trainer.sharded(), trainer.optimizer(), saved.path(), 2);
      const Trace trace = advance(trainer, 2, 2);
      if (world.rank() == 0) expected = trace.losses;
    });
    const auto resumed = [&, to = to](bool loses) {
      run_threads(2, [&](const Communicator& world) {
        TrainingOptions options = tiled(layout, to);
        Trainer trainer(Mesh(world, Layout{.data = 2}.mesh()), options);
        const LoadedCheckpoint loaded =
            load_checkpoint(trainer.sharded(), trainer.optimizer(), find_checkpoint(saved.path()), true);
        trainer.optimizer().restore(loaded.optimizer_steps);
        if (loses) trainer.optimizer().states().front().slots[0].zero();
        const Trace trace = advance(trainer, 2, 2);
        if (world.rank() == 0) losses = trace.losses;
      });
      return Comparer(parity_tolerance).numbers(expected, losses, "loss");
    };
    EXPECT_EQ(resumed(false), "") << from << " to " << to << " tiles";
    EXPECT_NE(resumed(true), "") << "the control: a slot of the optimizer is lost";
  }
}

// The largest unit is a tile, of which the plan counts those that are gathered at a time. The bytes of a step stay.
TEST(Tiles, ArePlanned) {
  const Variable ring("STRETTO_ALGO", "all_reduce:ring;reduce_scatter:ring;all_gather:ring");
  const Layout layout{.data = 2, .tensor = 2};
  const auto plan = [&](int tiles) {
    TrainingOptions options = tiled(layout, tiles, DType::f32);
    options.model.hidden = 128;  // other units are smaller than a tile
    options.model.sequence = 16;
    const TrainingOptions on = options.on(layout.mesh());
    return plan_stage(on, on.check(), 0);
  };
  const std::int64_t of_whole = 4 * 128 * 512 / 2;
  const StagePlan whole = plan(1), halves = plan(2), quarters = plan(4);
  // Values of prefetch + 2 units, gradients of as many, and shares of the sums of one less.
  const auto saved = [](std::int64_t unit_bytes) { return 3 * unit_bytes + 3 * unit_bytes + 2 * unit_bytes / 2; };
  EXPECT_EQ(halves.memory.buffers - quarters.memory.buffers, saved(of_whole / 2 - of_whole / 4));
  EXPECT_GE(whole.memory.buffers - halves.memory.buffers, saved(of_whole / 2)) << "a whole weight shares a unit with a bias";
  for (const StagePlan& tiles : {halves, quarters}) {
    EXPECT_EQ(tiles.memory.values, whole.memory.values);
    EXPECT_EQ(tiles.sent, whole.sent);
  }
}

TEST(Tiles, OfAStoredBaseArePlanned) {
  const auto buffers = [&](int tiles) {
    TrainingOptions options = tiled({}, tiles, DType::f32);
    options.sharding.zero = ZeroStage::none;
    options.model.hidden = 128;
    options.adapters = all_linear();
    options.adapters.base = StoredFormat::nf4;
    return plan_stage(options, options.check(), 0).memory.buffers;
  };
  const std::int64_t of_whole = 4 * 128 * 512;
  EXPECT_EQ(buffers(2) - buffers(4), 3 * (of_whole / 2 - of_whole / 4)) << "prefetch + 2 units";
  EXPECT_GE(buffers(1) - buffers(2), 3 * of_whole / 2);
}

TEST(Tiles, SendWhatIsPlanned) {
  const Variable ring("STRETTO_ALGO", "all_reduce:ring;reduce_scatter:ring;all_gather:ring");
  const Layout layout{.data = 2, .tensor = 2};
  TrainingOptions options = tiled(layout, 4, DType::f32);
  options.model.vocabulary = 64;
  const TrainingOptions on = options.on(layout.mesh());
  const StagePlan plan = plan_stage(on, on.check(), 0);
  std::map<std::string, std::int64_t> sent;
  for (const Record& record : train(layout, options).front().records) {
    if (record.tag == "gradient norm" || record.tag == "loss") continue;
    sent[record.group.substr(0, record.group.find(' '))] += static_cast<std::int64_t>(record.bytes_sent);
  }
  EXPECT_EQ(sent.at("tp"), plan.sent.at("tp"));
  EXPECT_NEAR(static_cast<double>(sent.at("dp")) / static_cast<double>(plan.sent.at("dp")), 1, 0.15) << "an estimate";
}

TEST(Tiles, RefuseWhatTheyDoNotGoWith) {
  const auto refusal = [](Layout layout, const std::function<void(TrainingOptions&)>& change) {
    TrainingOptions options = tiled(layout, 4).on(layout.mesh());
    change(options);
    return sentence_of([&] { options.check(); });
  };
  using testing::HasSubstr;
  EXPECT_EQ(refusal({.data = 2}, [](TrainingOptions&) {}), "");
  EXPECT_THAT(refusal({.data = 2}, [](TrainingOptions& options) { options.tiles = 0; }), HasSubstr("into 0 tiles"));
  EXPECT_THAT(refusal({.data = 2}, [](TrainingOptions& options) { options.sharding.zero = ZeroStage::gradients; }),
              HasSubstr("At ZeRO stage 2 the values of linear layers are always there"));
  EXPECT_EQ(refusal({.data = 2},
                    [](TrainingOptions& options) {
                      options.sharding.zero = ZeroStage::gradients;
                      options.adapters = all_linear();
                      options.adapters.base = StoredFormat::nf4;
                    }),
            "");
  EXPECT_THAT(refusal({.data = 2, .pipeline = 2}, [](TrainingOptions&) {}), HasSubstr("stay through a step"));
  EXPECT_THAT(refusal({.tensor = 2}, [](TrainingOptions& options) { options.divides_rows = true; }),
              HasSubstr("Sequence parallelism"));
  EXPECT_THAT(refusal({.data = 2}, [](TrainingOptions& options) { options.optimizer = Muon::Options(); }),
              HasSubstr("muon updates whole matrices"));
  EXPECT_THAT(refusal({.tensor = 4}, [](TrainingOptions& options) { options.model.kv_heads = 2; }),
              HasSubstr("share 2 heads of keys and values"));
  EXPECT_THAT(refusal({.data = 2}, [](TrainingOptions& options) { options.tiles = 5; }),
              HasSubstr("do not divide into 5 tiles"));
}

}  // namespace
}  // namespace parity::tiles
