// Training in 16 bits: steps that overflow are left out by all ranks, and gradients in 16 bits keep what holds for others.
#include <cmath>

#include "parity.hpp"

namespace parity {
namespace {

class MixedPrecision : public testing::TestWithParam<ZeroStage> {};

constexpr Layout two_by_two{2, 2};

TrainingOptions in_f16(ZeroStage stage, double scale) {
  TrainingOptions options = tiny(two_by_two, DType::f16);
  options.sharding.zero = stage;
  options.loss_scale.initial = scale;
  return options;
}

// The first steps overflow and halve the scale. Afterwards training is what it would be if it had begun there.
TEST_P(MixedPrecision, StepsThatOverflowLeaveNothingBehind) {
  run_threads(two_by_two.ranks(), [](const Communicator& world) {
    const Mesh mesh(world, {{Axis::tensor, two_by_two.tensor}, {Axis::data, two_by_two.data}});
    const double too_large = std::ldexp(1, 26);
    Trainer trainer(mesh, in_f16(GetParam(), too_large));
    const Pieces before = pieces_of(trainer, trainer.sharded().whole_values());
    std::int64_t step = 0;
    for (; step < LossScale::most_overflows; ++step) {
      trainer.compute_gradients(text_of_step(trainer.options(), step));  // also a step without an update
      const double scale = trainer.loss_scale().value();
      const StepResult result = trainer.step(text_of_step(trainer.options(), step), 3e-3);
      if (result.updated) break;
      EXPECT_FALSE(std::isfinite(result.gradient_norm));
      EXPECT_TRUE(std::isfinite(result.loss));
      EXPECT_EQ(trainer.loss_scale().value(), scale / 2);
      EXPECT_EQ(Comparer(equal_bits).pieces(before, pieces_of(trainer, trainer.sharded().whole_values()), "after a skip"),
                "");
      EXPECT_EQ(trainer.optimizer().steps(), 0);
    }
    EXPECT_GE(step, 2);
    EXPECT_EQ(trainer.loss_scale().value(), std::ldexp(too_large, -static_cast<int>(step)));
    const Trace rest = advance(trainer, step + 1, 2);
    EXPECT_NE(Comparer(equal_bits).pieces(before, rest.parameters, "the control"), "");

    Trainer later(mesh, in_f16(GetParam(), trainer.loss_scale().value()));
    EXPECT_TRUE(later.step(text_of_step(later.options(), step), 3e-3).updated);
    EXPECT_EQ(compare(advance(later, step + 1, 2), rest, equal_bits).all(), "");
  });
}

// With too small a scale, f16 loses most of the gradient.
TEST_P(MixedPrecision, TheScaleKeepsSmallGradients) {
  const auto norms = [](DType dtype, double scale) {
    TrainingOptions options = in_f16(GetParam(), scale);
    options.sharding.dtype = dtype;
    return train(two_by_two, options).front().norms;
  };
  const std::vector<double> expected = norms(DType::f32, 1);
  const double error = std::abs(norms(DType::f16, 65536).front() - expected.front());
  const double error_without = std::abs(norms(DType::f16, std::ldexp(1, -14)).front() - expected.front());
  EXPECT_LT(error, 0.01 * expected.front());
  EXPECT_GT(error_without, 10 * error);
}

INSTANTIATE_TEST_SUITE_P(Stages, MixedPrecision, testing::ValuesIn(zero_stages),
                         [](const auto& stage) { return fmt::format("zero{}", static_cast<int>(stage.param)); });

// The errors of quantized gradients are cleared by an overflow, which would leave NaN in them, and follow the scale.
TEST(LossScaleOfQuantizedGradients, ErrorsFollowIt) {
  run_threads(2, [](const Communicator& world) {
    const Layout two{2, 1};
    TrainingOptions options = tiny(two, DType::f16);
    options.sharding.zero = ZeroStage::values;
    options.sharding.qgz = QuantizedFormat::int4;
    options.sharding.qgz_error_feedback = true;
    options.loss_scale = {.initial = std::ldexp(1, 26), .window = 1};
    Trainer trainer(Mesh(world, {{Axis::data, 2}}), options);
    const auto largest = [&] {
      double most = 0;
      for (const ErrorFeedback::Entry& entry : trainer.sharded().errors().entries()) {
        for (std::int64_t i = 0; i < entry.values.size(); ++i) most = std::max(most, std::abs(entry.values.at(i)));
      }
      return most;
    };
    bool updated = false;
    for (std::int64_t step = 0; step < 12; ++step) {
      const StepResult result = trainer.step(text_of_step(options, step), 1e-4);
      if (!result.updated) {
        EXPECT_EQ(largest(), 0) << "step " << step;
        continue;
      }
      updated = true;
      EXPECT_EQ(trainer.loss_scale().value(), 2 * result.loss_scale);
      EXPECT_TRUE(std::isfinite(largest()));
      EXPECT_GT(largest(), 0);
    }
    EXPECT_TRUE(updated);
  });
}

// Gradients in 16 bits are those of f32 to the precision of the type, and the stages agree on their bits.
TEST(GradientsIn16Bits, AreThoseOfF32Rounded) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    TrainingOptions options = tiny(two_by_two, dtype);
    options.global_batch = two_by_two.data;  // one microbatch: all stages add the same numbers in the same order
    options.clip_norm = 0;
    const std::vector<Trace> wide = train(two_by_two, options);
    options.sharding.gradient_dtype = dtype;
    const std::vector<Trace> narrow = train(two_by_two, options);
    EXPECT_NE(divergence(wide, narrow), "");
    const Comparison comparison = compare(wide.front(), narrow.front(), 0.01);
    EXPECT_EQ(comparison.loss + comparison.norm, "") << name(dtype);
    for (const ZeroStage stage : {ZeroStage::none, ZeroStage::gradients, ZeroStage::values}) {
      options.sharding.zero = stage;
      EXPECT_EQ(divergence(narrow, train(two_by_two, options)), "") << name(dtype) << ", stage " << static_cast<int>(stage);
    }
  }
}

}  // namespace
}  // namespace parity
