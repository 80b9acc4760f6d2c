// Training with sums of gradients in low-rank factors, in the layouts that have them.
#include <gmock/gmock.h>

#include <cmath>

#include "parity.hpp"
#include "support/error.hpp"
#include "support/tiers.hpp"

namespace parity {
namespace {

const std::vector<Layout> powersgd_layouts = {
    {2}, {3}, {2, 2}, {2, 1, 2}, {.data = 1, .ring = 2}, {.data = 2, .ulysses = 2}};

TrainingOptions with_powersgd(Layout layout, int rank, ZeroStage stage = ZeroStage::none) {
  TrainingOptions options = tiny(layout, DType::f32);
  options.sharding.zero = stage;
  options.sharding.powersgd.rank = rank;
  options.optimizer = SGD::Options{};  // AdamW makes steps of the rounding of gradients that are 0
  return options;
}

// With factors that are not smaller, each gradient is summed as it is. The control: with few columns.
TEST(PowerSGDTraining, IsThatOfPlainSumsWhereNothingHasFactors) {
  for (const Layout layout : of_today(powersgd_layouts)) {
    const auto expected = train(layout, with_powersgd(layout, 0));
    const auto same = [&](int rank) {
      const auto found = train(layout, with_powersgd(layout, rank));
      std::string all;
      for (std::size_t i = 0; i < found.size(); ++i) all += compare(expected[i], found[i], 1e-4, has_of(layout)).all();
      return all;
    };
    EXPECT_EQ(same(1000), "") << layout.ranks();
    EXPECT_NE(same(2), "");
  }
}

// Of one microbatch, with and without overlap.
TEST(PowerSGDTraining, HasTheSameBitsAtEveryStage) {
  for (const Layout layout : of_today(powersgd_layouts)) {
    const auto at = [&](ZeroStage stage, bool overlap) {
      TrainingOptions options = with_powersgd(layout, 2, stage);
      options.global_batch = layout.data;
      options.sharding.overlap = overlap;
      return train(layout, options);
    };
    const auto expected = at(ZeroStage::none, true);
    for (const ZeroStage stage : {ZeroStage::none, ZeroStage::optimizer, ZeroStage::gradients}) {
      for (const bool overlap : {false, true}) {
        EXPECT_EQ(divergence(expected, at(stage, overlap)), "")
            << layout.ranks() << " ranks, stage " << static_cast<int>(stage);
      }
    }
  }
}

// Errors have the scale of gradients. A step that overflows halves both, and leaves nothing else behind.
TEST(PowerSGDTraining, ErrorsFollowTheLossScale) {
  const Layout two{2};
  TrainingOptions options = tiny(two, DType::f16);
  options.sharding.powersgd.rank = 2;
  run_threads(2, [&](const Communicator& world) {
    Trainer trainer(Mesh(world, two.mesh()), options);
    const auto errors = [&] {
      std::vector<double> result;
      for (const ErrorFeedback::Entry& entry : trainer.sharded().errors().entries()) {
        if (!entry.tensor.starts_with("powersgd.")) continue;
        for (std::int64_t i = 0; i < entry.values.size(); ++i) result.push_back(entry.values.at(i));
      }
      return result;
    };
    EXPECT_TRUE(trainer.step(text_of_step(options, 0), 3e-3).updated);
    std::vector<double> before = errors();
    double sum = 0;
    for (const double each : before) sum += std::abs(each);
    EXPECT_GT(sum, 0) << "the control: there is something to scale";
    trainer.loss_scale().restore({{"loss_scale", "1e12"}, {"loss_scale_good_steps", "0"}, {"loss_scale_overflows", "0"}});
    EXPECT_FALSE(trainer.step(text_of_step(options, 1), 3e-3).updated);
    const std::vector<double> after = errors();
    for (double& each : before) each /= 2;
    EXPECT_EQ(after, before);
  });
}

TEST(PowerSGDTraining, RefusesWhatSumsOtherwise) {
  const auto refusal = [](const std::function<void(TrainingOptions&)>& change) {
    TrainingOptions options = with_powersgd({2}, 2);
    options.mesh = Layout{2}.mesh();
    change(options);
    return sentence_of([&] { options.check(); });
  };
  using testing::HasSubstr;
  EXPECT_EQ(refusal([](TrainingOptions&) {}), "");
  EXPECT_THAT(refusal([](TrainingOptions& options) { options.optimizer = OneBitAdam::Options{}; }), HasSubstr("1-bit Adam"));
  EXPECT_THAT(refusal([](TrainingOptions& options) {
                options.diloco = {.replicas = 2, .sync_every = 4};
                options.global_batch *= 2;
              }),
              HasSubstr("replicas sum none between them"));
  EXPECT_THAT(refusal([](TrainingOptions& options) { options.sharding.delay = 1; }), HasSubstr("leave delays"));
  EXPECT_THAT(refusal([](TrainingOptions& options) {
                options.mesh = Layout{1, 1, 2}.mesh();
                options.stages.schedule_name = "2bw";
                options.model.tied = false;
              }),
              HasSubstr("without a flush"));
}

}  // namespace
}  // namespace parity
