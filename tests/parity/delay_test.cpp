// Gradients that are one step late: training must have the bits of the reference loop, whatever the layout.
#include <gmock/gmock.h>

#include <utility>

#include "delayed.hpp"
#include "support/random_interruptions.hpp"
#include "support/temporary_directory.hpp"
#include "support/tiers.hpp"
#include "support/variables.hpp"

namespace parity::delay {
namespace {

// Gradients and updates write down what they were given, so that the loop itself can be read.
std::string formula(std::size_t delay, int steps) {
  return delayed_updates(
      std::string("W"), delay, steps, [](int t, const std::string& at) { return fmt::format("g{}({})", t, at); },
      [](int, const std::string& from, const std::string& gradient) { return from + "-" + gradient; });
}

TEST(ReferenceLoop, UsesWeightsThatAreSoManyUpdatesOld) {
  EXPECT_EQ(formula(1, 0), "W");
  EXPECT_EQ(formula(0, 2), "W-g0(W)-g1(W-g0(W))");
  EXPECT_EQ(formula(1, 2), "W-g0(W)-g1(W)");
  EXPECT_EQ(formula(1, 3), "W-g0(W)-g1(W)-g2(W-g0(W))");
  EXPECT_EQ(formula(2, 4), "W-g0(W)-g1(W)-g2(W)-g3(W-g0(W))");
}

class Delay : public testing::TestWithParam<Case> {};

TEST_P(Delay, HasTheBitsOfTheReferenceLoop) {
  const Layout layout = GetParam().layout;
  TrainingOptions options = options_of(GetParam());
  const Trainings expected = reference(layout, options, 1);
  EXPECT_TRUE(delayed(layout, options) == expected) << GetParam().text();
  options.sharding.overlap = false;
  EXPECT_TRUE(delayed(layout, options) == expected) << GetParam().text() << " without overlap";
}

std::vector<Case> cases() {
  using enum ZeroStage;
  return {{{1}, none, "momentum"},
          {{2}, none, "sgd"},
          {{2}, optimizer, "momentum"},
          {{3}, gradients, "adamw", DType::f64},
          {{4}, none, "adamw", DType::bf16},
          {{4}, gradients, "sgd", DType::bf16},
          {{1, 2}, optimizer, "sgd"},
          {{2, 2}, none, "momentum", DType::f64},
          {{2, 1, 2}, none, "adamw", DType::f32, "zb-h1"},
          {{2, 1, 2}, gradients, "momentum", DType::f32, "interleaved"},
          {{.data = 2, .ring = 2}, none, "adamw"},
          {{.data = 2, .ulysses = 2}, optimizer, "momentum"},
          {{2, 2, 2}, none, "adamw"},
          {{2, 2, 2}, optimizer, "sgd", DType::f64, "zb-v"},
          {{2, 2, 2}, gradients, "adamw", DType::bf16},
          {{2}, values, "momentum"},
          {{3}, values, "adamw", DType::bf16},
          {{2}, values, "muon"},
          {{2, 2, 2}, values, "adamw"}};
}

INSTANTIATE_TEST_SUITE_P(Layouts, Delay, testing::ValuesIn(of_today(cases(), 3)), name_of);

// The switch is exact: updates without the delay, and then with it, also where they run behind computation.
TEST(Delay, BeginsAtTheUpdateThatIsNamed) {
  const TemporaryDirectory directory;
  for (const Case& its : {Case{{2}, ZeroStage::optimizer}, Case{{2}, ZeroStage::values, "momentum"},
                          Case{{2, 1, 2}, ZeroStage::gradients, "adamw", DType::bf16}}) {
    TrainingOptions options = options_of(its);
    const Trainings at_once = delayed(its.layout, options);
    for (const int from : {1, 2, 3}) {
      options.delay_from = from;
      options.sharding.offload = {};
      const Trainings expected = reference(its.layout, options, 1);
      EXPECT_TRUE(delayed(its.layout, options) == expected) << its.text() << ", from " << from;
      options.sharding.offload.optimizer.directory = directory.path();
      EXPECT_TRUE(delayed(its.layout, options) == expected) << its.text() << ", state in a file, from " << from;
      if (its.zero >= ZeroStage::gradients) options.sharding.offload.gradients.directory = directory.path();
      if (its.zero == ZeroStage::values) options.sharding.offload.values.directory = directory.path();
      EXPECT_TRUE(delayed(its.layout, options) == expected) << its.text() << ", all in files, from " << from;
      EXPECT_FALSE(expected == at_once) << "the control";
    }
  }
}

// The comparison sees another delay, an update that is left out, and the batches' order.
TEST(DelayControl, FailsWithAnotherDelay) {
  const Case its{{2}, ZeroStage::optimizer};
  const Trainings found = delayed(its.layout, options_of(its));
  EXPECT_TRUE(found == reference(its.layout, options_of(its), 1));
  EXPECT_FALSE(found == reference(its.layout, options_of(its), 0));
  EXPECT_FALSE(found == reference(its.layout, options_of(its), 2));
  EXPECT_FALSE(found == delayed(its.layout, options_of(its), false));
  const TemporaryDirectory directory;
  TrainingOptions in_file = options_of(its);
  in_file.sharding.offload.optimizer.directory = directory.path();
  EXPECT_TRUE(delayed(its.layout, in_file) == found);
  EXPECT_FALSE(delayed(its.layout, in_file) == reference(its.layout, in_file, 0));
  EXPECT_FALSE(delayed(its.layout, in_file, false) == found);
  const Trainings synchronous = on_ranks(its.layout, options_of(its), [&](Trainer& trainer, Training& training) {
    for (int t = 0; t < steps_of_training; ++t) {
      const StepResult result = trainer.step(text_of_step(options_of(its), t), rate(t));
      training.losses.push_back(result.loss);
      note(training, result);
    }
    EXPECT_FALSE(trainer.finish().arrived);
  });
  EXPECT_TRUE(synchronous == reference(its.layout, options_of(its), 0));
  EXPECT_FALSE(found == synchronous);
}

TEST(Delay, HasTheSameBitsOnABusyMachine) {
  for (const Case& its : {Case{{4}, ZeroStage::none}, Case{{2, 1, 2}, ZeroStage::gradients}}) {
    const Trainings expected = reference(its.layout, options_of(its), 1);
    const RandomInterruptions interruptions(11);
    TrainingOptions options = options_of(its);
    const TemporaryDirectory directory;
    for (int round = 0; round < 3; ++round) {
      EXPECT_TRUE(delayed(its.layout, options) == expected) << its.text();
      options.sharding.offload.optimizer.directory = directory.path();
    }
  }
}

// The scale overflows the first gradients, and those of the batch that has been computed before this is known.
TEST(Delay, LeavesOutTheStepsWhoseGradientsOverflowOnAllRanks) {
  const std::vector<std::pair<Case, double>> cases = {{{{2, 2}, ZeroStage::none, "adamw", DType::f16}, 0x1p22},
                                                      {{{2, 1, 2}, ZeroStage::gradients, "momentum", DType::f16}, 0x1p23}};
  for (const auto& [its, scale] : cases) {
    TrainingOptions options = options_of(its);
    options.loss_scale = {.initial = scale, .window = 2};
    const Trainings found = delayed(its.layout, options);
    EXPECT_TRUE(found == reference(its.layout, options, 1)) << its.text();
    for (const Training& training : found) {
      EXPECT_EQ(training.updated, (std::vector<bool>{false, false, true, true})) << its.text();
      EXPECT_EQ(training.scales, (std::vector<double>{scale, scale, scale / 2, scale / 4})) << its.text();
    }
  }
}

// How many sums of the step before are in flight while each step's batch is looked at.
std::vector<std::int64_t> sums_in_flight(int delay, ZeroStage zero) {
  const Variable nodes("STRETTO_RANKS_PER_NODE", "1");
  const Variable links("STRETTO_LINKS", "intra=4Mb/s,300us;inter=4Mb/s,300us");  // far slower than the computation
  const Case its{{2}, zero};
  TrainingOptions options = options_of(its);
  options.sharding.delay = delay;
  std::vector<std::int64_t> in_flight;
  run_threads(2, [&](const Communicator& world) {
    Trainer trainer(Mesh(world, its.layout.mesh()), options);
    for (int t = 0; t < 3; ++t) {
      std::int64_t count = 0;
      trainer.step(
          [&](std::int64_t slot, std::int32_t* tokens, std::int32_t* targets) {
            const std::vector<Record> records = world.job().ledger().records();
            count = std::ranges::count_if(
                records, [](const Record& record) { return record.tag == "gradients" && record.times.done == 0; });
            text_of_step(options, t)(slot, tokens, targets);
          },
          rate(t));
      if (world.rank() == 0) in_flight.push_back(count);
    }
  });
  return in_flight;
}

TEST(Delay, LetsSumsTravelWhileTheNextStepComputes) {
  for (const ZeroStage zero : {ZeroStage::none, ZeroStage::optimizer, ZeroStage::gradients}) {
    const std::vector<std::int64_t> late = sums_in_flight(1, zero);
    EXPECT_EQ(late[0], 0);
    EXPECT_GT(late[1] + late[2], 0) << static_cast<int>(zero);
    EXPECT_EQ(sums_in_flight(0, zero), std::vector<std::int64_t>(3, 0)) << "the control";
  }
}

}  // namespace
}  // namespace parity::delay
