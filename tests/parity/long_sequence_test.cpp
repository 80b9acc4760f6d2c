// Training in f64 with sequences divided over the ranks of a ring, of ulysses, or both, and of all other axes, against one
// rank. The controls show that each comparison can fail.
#include <gmock/gmock.h>

#include "apps/train/run/sampling.hpp"
#include "by_hand.hpp"
#include "support/tiers.hpp"

namespace parity {
namespace {

struct SequenceCell {
  Layout layout;
  SequenceLayout places = SequenceLayout::zigzag;
  std::string mask = "dense";
  ZeroStage zero = ZeroStage::optimizer;
};

TrainingOptions options_of(const SequenceCell& cell) {
  const Layout& layout = cell.layout;
  TrainingOptions options = tiny({.data = layout.data, .tensor = layout.tensor * layout.ulysses});
  options.divides_rows = layout.tensor > 1;
  options.sequence_layout = cell.places;
  options.mask = attention_mask_from_text(cell.mask);
  const std::int64_t multiple = options.on(layout.mesh()).division().multiple();
  options.model.sequence = (23 / multiple + 1) * multiple;
  options.micro_batch = 2;
  options.global_batch = 4L * layout.data;
  if (layout.pipeline > 1) options.model.layers = layout.pipeline;
  options.sharding.zero = cell.zero;
  options.clip_norm = 0;
  return options;
}

// A rank computes the same heads from the same tokens, only elsewhere.
TEST(LongSequencesBits, UlyssesHasThoseOfOneRank) {
  const SequenceCell cell{{.ulysses = 2}};
  const TrainingOptions options = options_of(cell);
  const Trace& expected = of_one_rank(options);
  for (const Trace& trace : train(cell.layout, options)) EXPECT_EQ(trace.losses[0], expected.losses[0]);
}

TEST(LongSequencesSample, IsThatOfOneRank) {
  const auto sample_of = [](const Layout& layout) {
    std::string text;
    run_threads(layout.ranks(), [&](const Communicator& world) {
      SequenceCell cell{layout};
      TrainingOptions options = options_of({{.ring = 2, .ulysses = 2}});
      options.global_batch = 4;
      options.divides_rows = false;
      Trainer trainer(Mesh(world, layout.mesh()), options);
      const std::string own = apps::sample(trainer, "\1\2\3", {.length = 40});
      if (world.rank() == layout.ranks() - 1) text = own;
    });
    return text;
  };
  const std::string expected = sample_of({});
  EXPECT_EQ(sample_of({.ring = 2}), expected);
  EXPECT_EQ(sample_of({.ulysses = 2}), expected);
  EXPECT_EQ(sample_of({.pipeline = 2, .ring = 2, .ulysses = 2}), expected);
}

class LongSequenceControls : public testing::Test {
 protected:
  static Comparison with(const Fault& fault) {
    const SequenceCell cell{{.tensor = 2, .ring = 2}};
    const TrainingOptions options = options_of(cell);
    return with_fault(cell.layout, options, of_one_rank(options), fault);
  }
};

TEST_F(LongSequenceControls, PassWithoutAFault) { EXPECT_EQ(with({}).gradient, ""); }

TEST_F(LongSequenceControls, FailWithTargetsOfOtherTokens) { EXPECT_NE(with({.targets_in_order = true}).gradient, ""); }

// One hop's part of the sums over keys is left out.
TEST_F(LongSequenceControls, FailWithALogSumExpThatIsNotMerged) {
  EXPECT_NE(with({.in_attention =
                      [](AttentionCore::Saved& saved) { saved.log_sum_exp.set(0, saved.log_sum_exp.at(0) - std::log(2)); }})
                .gradient,
            "");
}

TEST_F(LongSequenceControls, FailWithAKeysGradientLost) {
  EXPECT_NE(with({.in_attention_backward =
                      [](const Tensor& dqkv) {
                        for (std::int64_t i = dqkv.columns() / 3; i < dqkv.columns(); ++i) dqkv.set(i, 0);
                      }})
                .gradient,
            "");
}

}  // namespace
}  // namespace parity
