// 1-bit Adam: AdamW before the freeze, v held fixed after it, the same weights on all ranks and at all ZeRO stages.
#include "stretto/layers/onebit_adam.hpp"

#include <gmock/gmock.h>

#include <cmath>

#include "own_gradient_checks.hpp"
#include "stretto/kernels.hpp"
#include "support/error.hpp"

namespace stretto {
namespace {

using ValuesByRank = std::vector<NumbersByElement>;

// The control: a freeze within these steps.
TEST(OneBitAdam, IsAdamWBitForBitBeforeTheFreeze) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const ZeroStage stage : own_gradient_stages) {
      const auto after = [&](const OptimizerOptions& optimizer) {
        return trained_values({{{Axis::data, 3}}, stage, optimizer, dtype}, 5);
      };
      const ValuesByRank expected = after(AdamW::Options{});
      EXPECT_EQ(after(OneBitAdam::Options{.freeze_step = 5}), expected);
      EXPECT_EQ(after(OneBitAdam::Options{}), expected) << "auto has nothing to compare in 5 steps";
      EXPECT_NE(after(OneBitAdam::Options{.freeze_step = 4}), expected);
    }
  }
}

// The reference: AdamW for some steps, and then the update alone, with numbers whose sums are exact. The controls: v that
// goes on, and one bit. To rounding, since not every processor fuses a product and a sum.
TEST(OneBitAdam, WithoutCompressionIsAdamWithVHeldFixed) {
  constexpr int ranks = 4, frozen = 3, steps = 6;
  constexpr double tolerance = 4e-6;  // of values up to 4
  OneBitAdam::Options options{.beta1 = 0.5, .beta2 = 0.75, .freeze_step = frozen, .format = QuantizedFormat::none};
  std::map<std::string, double> expected;
  run_threads(1, [&](const Communicator& world) {
    OwnGradientTraining initial(world, {.mesh = {}});
    for (const auto& [element, value] : initial.values()) {
      const std::string name = element.substr(0, element.find('['));
      const std::int64_t i = std::stoll(element.substr(name.size() + 1));
      const Tensor p = Tensor::of<float>({static_cast<float>(value)});
      const Tensor m = Tensor::zeros({1}, DType::f32), v = Tensor::zeros({1}, DType::f32);
      for (int step = 1; step <= steps; ++step) {
        double g = 0;
        for (int rank = 0; rank < ranks; ++rank) g += integer_gradient(rank, step, name, i);
        const double decay = name == "replicated" ? 0 : options.weight_decay;
        if (step <= frozen) {
          kernels::adamw({.lr = 1e-2,
                          .beta1 = options.beta1,
                          .beta2 = options.beta2,
                          .weight_decay = decay,
                          .step = step,
                          .gradient_scale = 0.5},
                         Tensor::of<float>({static_cast<float>(g)}), p, m, v, p);
          continue;
        }
        m.set(0, 0.5 * m.at(0) + 0.5 * (0.5 * g));
        float w = std::fma(-static_cast<float>(1e-2 * decay), static_cast<float>(p.at(0)), static_cast<float>(p.at(0)));
        const float deviation =
            std::sqrt(static_cast<float>(v.at(0)) * static_cast<float>(1 / (1 - std::pow(0.75, frozen)))) + 1e-8F;
        const auto limit = static_cast<float>(options.ratio_limit() * (1 - std::pow(0.5, frozen)));
        const float ratio = std::clamp(static_cast<float>(m.at(0)) / deviation, -limit, limit);
        w = std::fma(-static_cast<float>(1e-2 / (1 - std::pow(0.5, frozen))), v.at(0) == 0 ? 0 : ratio, w);
        p.set(0, w);
      }
      expected[element] = p.at(0);
    }
  });
  for (const ZeroStage stage : own_gradient_stages) {
    for (const auto& values : trained_values({{{Axis::data, ranks}}, stage, options}, steps, integer_gradient)) {
      EXPECT_LT(largest_difference(values, expected), tolerance) << static_cast<int>(stage);
    }
  }
  OneBitAdam::Options other = options;
  other.freeze_step = steps;
  const auto difference = [&] {
    return largest_difference(
        trained_values({{{Axis::data, ranks}}, ZeroStage::none, other}, steps, integer_gradient).front(), expected);
  };
  EXPECT_GT(difference(), 100 * tolerance);
  other = options;
  other.format = QuantizedFormat::onebit;
  EXPECT_GT(difference(), 100 * tolerance);
}

TEST(OneBitAdam, AllRanksHaveEqualWeightsAfterEachStepAtEveryStage) {
  for (const int ranks : {1, 2, 3, 5}) expect_equal_weights_at_every_stage({}, ranks, 8);
}

TEST(OneBitAdam, TakesMicrobatches) {
  const OneBitAdam::Options options{.beta1 = 0.5, .beta2 = 0.75, .freeze_step = 2};
  expect_microbatches_to_change_nothing({.mesh = {{Axis::data, 2}}, .stage = ZeroStage::none, .optimizer = options}, 6);
}

TEST(OneBitAdam, KeepsCopiesOfTensorParallelRanksEqual) {
  expect_equal_copies_at_every_stage({}, 8);
  run_threads(4, [](const Communicator& world) {
    OwnGradientTraining training(world, {{{Axis::tensor, 2}, {Axis::data, 2}}});
    training.steps(1, 4);
    std::vector<std::string> names;
    for (const LocalGradients& its : training.sharded().local_gradients()) names.push_back(its.name);
    EXPECT_THAT(names, testing::UnorderedElementsAre("dp", "dp copies over tp"));
  });
}

// v / c2 falls by a factor each period of D = 4 steps until step 16, and then stays.
double falling_gradient(int rank, int step, const std::string& /*name*/, std::int64_t i) {
  return (rank == 0 ? 1 : 0) * std::pow(0.8, std::min(step, 16)) * (i % 2 == 0 ? 1 : -2);
}

// The control: a gradient that falls for ever.
TEST(OneBitAdam, FreezesOnAllRanksAtOnceWhenVIsStable) {
  const OneBitAdam::Options options{.beta2 = 0.75};
  std::int64_t expected = 0;
  double v = 0, before = 0;
  for (int step = 1; step <= 60 && expected == 0; ++step) {
    const double g = falling_gradient(0, step, "", 0);
    v = 0.75 * v + 0.25 * g * g;
    if (step % 4 != 0) continue;
    const double now = v / (1 - std::pow(0.75, step));
    if (before > 0 && now / before >= 0.96) expected = step;
    before = now;
  }
  ASSERT_GT(expected, 16);
  run_threads(3, [&](const Communicator& world) {
    OwnGradientTraining training(world, {{{Axis::data, 3}}, ZeroStage::optimizer, options}, falling_gradient);
    for (int step = 1; step <= 60; ++step) {
      training.step(step);
      EXPECT_EQ(training.onebit().frozen_after().has_value(), step >= expected) << step;
      EXPECT_EQ(training.optimizer().clips_gradients(), step < expected);
    }
    EXPECT_EQ(training.onebit().frozen_after(), expected);
    OwnGradientTraining other(
        world, {{{Axis::data, 3}}, ZeroStage::optimizer, options},
        [](int rank, int step, const std::string&, std::int64_t) { return rank * std::pow(0.9, step); });
    other.steps(1, 60);
    EXPECT_FALSE(other.onebit().frozen_after());
  });
}

// The control: the same elements with a gradient before the freeze.
TEST(OneBitAdam, LeavesElementsWithoutVariance) {
  const auto late = [](bool masked) {
    return [masked](int rank, int step, const std::string& name, std::int64_t i) {
      if (name == "replicated" && i < 4 && step <= 3 && masked) return 0.0;
      return normal_gradient(rank, step, name, i);
    };
  };
  const OwnGradientLayout layout{{{Axis::data, 2}}};
  const auto initial = trained_values(layout, 0).front(), masked = trained_values(layout, 30, late(true)).front();
  const auto control = trained_values(layout, 30, late(false)).front();
  for (int i = 0; i < 9; ++i) {
    const std::string element = fmt::format("replicated[{}]", i);
    EXPECT_EQ(masked.at(element) == initial.at(element), i < 4) << element;
    EXPECT_NE(control.at(element), initial.at(element));
    EXPECT_LT(std::abs(masked.at(element) - initial.at(element)), 30 * 1e-2 * 1.2);
  }
}

// Elements with hardly any variance beside others with much: one bit gives both one magnitude. The control: without the
// limit.
TEST(OneBitAdam, MovesNoElementFartherThanAdamWCan) {
  const auto farthest = [](bool limits) {
    const OwnGradientLayout layout{{{Axis::data, 2}},
                                   ZeroStage::optimizer,
                                   OneBitAdam::Options{.weight_decay = 0, .freeze_step = 3, .limits_ratio = limits}};
    const auto gradient = [](int rank, int step, const std::string& name, std::int64_t i) {
      return normal_gradient(rank, step, name, i) * (i % 16 == 0 ? 1e-6 : 1);
    };
    const auto before = trained_values(layout, 10, gradient).front(), after = trained_values(layout, 11, gradient).front();
    double most = 0;
    for (const auto& [element, value] : after) most = std::max(most, std::abs(value - before.at(element)));
    return most;
  };
  EXPECT_LE(farthest(true), 1e-2 * OneBitAdam::Options{}.ratio_limit() * 1.001);
  EXPECT_GT(farthest(false), 1);
}

TEST(OneBitAdam, ClipsTheMomentumThatItApplies) {
  const auto moved = [](double clip_norm) {
    const OwnGradientLayout layout{
        {{Axis::data, 2}},
        ZeroStage::optimizer,
        OneBitAdam::Options{.weight_decay = 0, .freeze_step = 3, .clip_norm = clip_norm, .limits_ratio = false}};
    const auto before = trained_values(layout, 3).front(), after = trained_values(layout, 4).front();
    double sum = 0;
    for (const auto& [element, value] : after) sum += std::abs(value - before.at(element));
    return sum;
  };
  const double whole = moved(0);
  EXPECT_EQ(moved(1e6), whole);
  EXPECT_LT(moved(1e-3), whole / 100);
}

TEST(OneBitAdam, AStepLeftOutLeavesNothingBehind) {
  for (const int number : {2, 4, 7}) {  // before the freeze, before the first exchange, and behind it
    expect_nothing_of_a_step_left_out({{{Axis::data, 3}}}, number, 8);
  }
}

TEST(OneBitAdam, NormOfOwnGradientsIsNotBelowThatOfTheSum) {
  run_threads(2, [](const Communicator& world) {
    OwnGradientTraining training(world, {{{Axis::data, 2}}, ZeroStage::optimizer, OneBitAdam::Options{.freeze_step = 1}},
                                 [](int rank, int, const std::string&, std::int64_t) { return rank == 0 ? 3 : 1; });
    training.compute(1);
    const double elements = 10 * 40 + 9;
    EXPECT_DOUBLE_EQ(gradient_norm(training.sharded()), std::sqrt(elements) * 4);
    training.update();
    training.compute(2);
    EXPECT_DOUBLE_EQ(gradient_norm(training.sharded()), std::sqrt(elements * (36 + 4) / 2));
  });
}

TEST(OneBitAdam, RefusesWhatCannotBe) {
  run_threads(2, [](const Communicator& world) {
    EXPECT_THAT(sentence_of([] { OneBitAdam::Options().check({.offload = {.gradients = {"/scratch"}}}); }),
                testing::HasSubstr("none of them can lie in /scratch"));
    const auto refusal = [&](const OneBitAdam::Options& options, ZeroStage stage = ZeroStage::optimizer,
                             DType dtype = DType::f32) {
      return sentence_of([&] { OwnGradientTraining(world, {{{Axis::data, 2}}, stage, options, dtype}); });
    };
    using testing::HasSubstr;
    EXPECT_EQ(refusal({}), "");
    EXPECT_THAT(refusal({}, ZeroStage::values), HasSubstr("ZeRO stage 3"));
    EXPECT_THAT(refusal({}, ZeroStage::none, DType::f64), HasSubstr("give a type of 32 or 16 bits"));
    EXPECT_EQ(refusal({.format = QuantizedFormat::none}, ZeroStage::none, DType::f64), "");
    EXPECT_THAT(refusal({.format = QuantizedFormat::int8}), HasSubstr("not in int8"));
    EXPECT_THAT(refusal({.freeze_step = -1}), HasSubstr("-1 steps"));
    EXPECT_THAT(refusal({.beta1 = 1}), HasSubstr("beta1 1"));
    EXPECT_THAT(refusal({.stable_ratio = 2}), HasSubstr("2"));
    EXPECT_THAT(refusal({.clip_norm = -1}), HasSubstr("-1"));
  });
}

}  // namespace
}  // namespace stretto
