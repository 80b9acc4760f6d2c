// Training by DeMo, in the layouts that have it.
#include <gmock/gmock.h>

#include "parity.hpp"
#include "support/error.hpp"
#include "support/tiers.hpp"

namespace parity {
namespace {

const std::vector<Layout> demo_layouts = {
    {1}, {2}, {3}, {2, 2}, {2, 1, 2}, {.data = 1, .ring = 2}, {.data = 2, .ulysses = 2}};

TrainingOptions with_demo(Layout layout, ZeroStage stage = ZeroStage::none, DType dtype = DType::f32) {
  TrainingOptions options = tiny(layout, dtype);
  options.sharding.zero = stage;
  options.optimizer = DeMo::Options{.compression_chunk = 16, .compression_topk = 8};
  return options;
}

// Nobody has the sum of the gradients, which traces would compare.
std::vector<Trace> trained(Layout layout, const TrainingOptions& options) {
  std::vector<Trace> traces = train(layout, options);
  for (Trace& trace : traces) trace.gradients.clear();
  return traces;
}

// Of one microbatch, with and without overlap. The control: one coefficient less.
TEST(DeMoTraining, HasTheSameBitsAtEveryStage) {
  for (const Layout layout : of_today(demo_layouts, 3)) {
    const auto at = [&](ZeroStage stage, bool overlap, std::int64_t topk) {
      TrainingOptions options = with_demo(layout, stage);
      options.optimizer = DeMo::Options{.compression_chunk = 16, .compression_topk = topk};
      options.global_batch = layout.data;
      options.sharding.overlap = overlap;
      return trained(layout, options);
    };
    const auto expected = at(ZeroStage::none, true, 8);
    for (const ZeroStage stage : {ZeroStage::none, ZeroStage::optimizer, ZeroStage::gradients}) {
      for (const bool overlap : {false, true}) {
        EXPECT_EQ(divergence(expected, at(stage, overlap, 8)), "")
            << layout.ranks() << " ranks, stage " << static_cast<int>(stage);
      }
    }
    EXPECT_NE(divergence(expected, at(ZeroStage::none, true, 7)), "");
  }
}

// A step that overflows leaves nothing behind, and the scale is not in the momentum. The control: another step more.
TEST(DeMoTraining, ForgetsAStepThatOverflows) {
  const Layout two{2};
  const auto after = [&](bool overflows, std::int64_t first) {
    double sum = 0;
    run_threads(2, [&](const Communicator& world) {
      const TrainingOptions options = with_demo(two, ZeroStage::optimizer, DType::f16);
      Trainer trainer(Mesh(world, two.mesh()), options);
      for (std::int64_t step = first; step < 4; ++step) {
        if (step == 2 && overflows) {
          const auto notes = trainer.loss_scale().notes();
          trainer.loss_scale().restore(
              {{"loss_scale", "1e12"}, {"loss_scale_good_steps", "0"}, {"loss_scale_overflows", "0"}});
          EXPECT_FALSE(trainer.step(text_of_step(options, 7), 3e-3).updated);
          trainer.loss_scale().restore(notes);
        }
        EXPECT_TRUE(trainer.step(text_of_step(options, step), 3e-3).updated);
      }
      const Pieces values = pieces_of(trainer, trainer.sharded().whole_values());
      if (world.rank() != 0) return;
      for (const auto& [name, piece] : values) {
        for (std::size_t i = 0; i < piece.values.size(); ++i) sum += piece.values[i] * random_uniform(3, name, i);
      }
    });
    return sum;
  };
  const double expected = after(false, 0);
  EXPECT_EQ(after(true, 0), expected);
  EXPECT_NE(after(false, 1), expected);
}

TEST(DeMoTraining, Learns) {
  const Layout two{2};
  run_threads(2, [&](const Communicator& world) {
    const TrainingOptions options = with_demo(two);
    Trainer trainer(Mesh(world, two.mesh()), options);
    double first = 0, last = 0;
    for (std::int64_t step = 0; step < 20; ++step) {
      last = trainer.step(text_of_step(options, step), 3e-3).loss;
      if (step == 0) first = last;
    }
    EXPECT_LT(last, first - 0.2);
  });
}

TEST(DeMoTraining, RefusesWhatSumsOtherwise) {
  const auto refusal = [](const std::function<void(TrainingOptions&)>& change) {
    TrainingOptions options = with_demo({2});
    options.mesh = Layout{2}.mesh();
    change(options);
    return sentence_of([&] { options.check(); });
  };
  using testing::HasSubstr;
  EXPECT_EQ(refusal([](TrainingOptions&) {}), "");
  EXPECT_THAT(refusal([](TrainingOptions& options) { options.sharding.delay = 1; }),
              HasSubstr("DeMo exchanges its momentum"));
  EXPECT_THAT(refusal([](TrainingOptions& options) { options.sharding.powersgd.rank = 2; }),
              HasSubstr("DeMo exchanges its momentum"));
  EXPECT_THAT(refusal([](TrainingOptions& options) {
                options.diloco = {.replicas = 2, .sync_every = 4};
                options.global_batch *= 2;
              }),
              HasSubstr("DeMo exchanges its momentum"));
}

}  // namespace
}  // namespace parity
