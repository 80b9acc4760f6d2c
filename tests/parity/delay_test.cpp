// Gradients that are one step late: training must have the bits of the reference loop, whatever the layout.
#include <gmock/gmock.h>

#include <utility>

#include "parity.hpp"
#include "stretto/layers/checkpoint.hpp"
#include "support/error.hpp"
#include "support/random_interruptions.hpp"
#include "support/reference_loop.hpp"
#include "support/temporary_directory.hpp"
#include "support/tiers.hpp"
#include "support/variables.hpp"

namespace parity {
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

constexpr int steps_of_training = 4;
double rate(int step) { return 3e-3 / (1 + step); }

// The results of a training, by its batches.
struct Training {
  std::vector<double> losses, norms, scales;
  std::vector<bool> updated;
  Pieces parameters;
  // Equal bits; norms of gradients that overflowed may be NaN.
  bool operator==(const Training& other) const {
    Comparer bits(equal_bits);
    return bits.numbers(losses, other.losses, "").empty() && bits.numbers(norms, other.norms, "").empty() &&
           scales == other.scales && updated == other.updated && bits.pieces(parameters, other.parameters, "").empty();
  }
};
using Trainings = std::vector<Training>;  // by rank

void note(Training& training, const StepResult& result) {
  if (!result.arrived) return;
  training.norms.push_back(result.gradient_norm);
  training.scales.push_back(result.loss_scale);
  training.updated.push_back(result.updated);
}

template <class Body>
Trainings on_ranks(Layout layout, const TrainingOptions& options, Body body) {
  Trainings trainings(static_cast<std::size_t>(layout.ranks()));
  run_threads(layout.ranks(), [&](const Communicator& world) {
    Trainer trainer(Mesh(world, layout.mesh()), options);
    Training& its = trainings[static_cast<std::size_t>(world.rank())];
    body(trainer, its);
    its.parameters = pieces_of(trainer, trainer.sharded().whole_values());
  });
  return trainings;
}

// options.delay_from: so many updates are made without the delay.
Trainings delayed(Layout layout, TrainingOptions options, bool finishes = true) {
  options.sharding.delay = 1;
  return on_ranks(layout, options, [&](Trainer& trainer, Training& its) {
    for (int t = 0; t < steps_of_training; ++t) {
      const StepResult result = trainer.step(text_of_step(options, t), rate(t));
      its.losses.push_back(result.loss);
      EXPECT_EQ(result.arrived, t != options.delay_from);
      note(its, result);
    }
    if (finishes) note(its, trainer.finish());
    EXPECT_FALSE(finishes && trainer.finish().arrived);
  });
}

// What the reference loop calls weights: the master weights of this rank's ranges, and the loss scale.
struct Weights {
  std::vector<Tensor> values;
  LossScale scale;
};

Weights weights_of(Trainer& trainer) {
  Weights weights{{}, trainer.loss_scale()};
  for (std::size_t i = 0; i < trainer.sharded().ranges().size(); ++i) {
    weights.values.push_back(trainer.optimizer().weights(i).clone());
  }
  return weights;
}

void give(Trainer& trainer, const Weights& weights) {
  trainer.sharded().wait_for_values();
  for (std::size_t i = 0; i < weights.values.size(); ++i) trainer.optimizer().weights(i).copy_from(weights.values[i]);
  trainer.optimizer().restore(trainer.optimizer().steps());
  trainer.loss_scale() = weights.scale;
}

// A synchronous trainer of the same layout, driven by the reference loop: options.delay_from steps without a delay, and then
// the others with it.
Trainings reference(Layout layout, TrainingOptions options, std::size_t delay) {
  options.sharding.measured_steps = 0;  // every rank has the whole weights at stage 0
  const auto from = static_cast<int>(std::exchange(options.delay_from, 0));
  return on_ranks(layout, options, [&](Trainer& trainer, Training& its) {
    const auto train = [&](Weights weights, std::size_t its_delay, int first, int steps) {
      return delayed_updates(
          std::move(weights), its_delay, steps,
          [&](int t, const Weights& at) {
            give(trainer, at);
            const StepResult result = trainer.compute_gradients(text_of_step(options, first + t));
            its.losses.push_back(result.loss);
            return result;
          },
          [&](int t, const Weights& from, StepResult result) {
            give(trainer, from);
            const double norm = result.gradient_norm;
            const double clip = options.clip_norm > 0 && norm > options.clip_norm ? options.clip_norm / norm : 1.0;
            result.updated = trainer.loss_scale().update(norm);
            note(its, result);
            if (result.updated) trainer.optimizer().step(rate(first + t), clip / result.loss_scale);
            return weights_of(trainer);
          });
    };
    give(trainer, train(train(weights_of(trainer), 0, 0, from), delay, from, steps_of_training - from));
  });
}

const std::map<std::string, OptimizerOptions> optimizers = {{"sgd", SGD::Options{.momentum = 0}},
                                                            {"momentum", SGD::Options{.momentum = 0.9}},
                                                            {"adamw", AdamW::Options{}},
                                                            {"muon", Muon::Options{}}};

struct Case {
  Layout layout;
  ZeroStage zero = ZeroStage::none;
  const char* optimizer = "adamw";
  DType dtype = DType::f32;
  const char* schedule = "1f1b";
  std::string text() const {
    return fmt::format("dp {} tp {} pp {} cp {} ulysses {}, ZeRO {}, {}, {}, {}", layout.data, layout.tensor,
                       layout.pipeline, layout.ring, layout.ulysses, static_cast<int>(zero), optimizer, name(dtype),
                       schedule);
  }
};

TrainingOptions options_of(const Case& its) {
  TrainingOptions options = tiny(its.layout, its.dtype);
  options.model.layers = 4;
  options.model.heads = 8;
  options.model.hidden = 32;
  options.global_batch = 2L * its.layout.data * its.layout.pipeline;  // microbatches are accumulated
  options.sharding.zero = its.zero;
  options.optimizer = optimizers.at(its.optimizer);
  options.stages.schedule_name = its.schedule;
  return options;
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

const auto name_of = [](const auto& it) {
  std::string text = it.param.text();
  std::ranges::replace_if(
      text, [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; }, '_');
  return text;
};
INSTANTIATE_TEST_SUITE_P(Layouts, Delay, testing::ValuesIn(of_today(cases(), 3)), name_of);

// With state in a file, updates run behind the next step's computation.
class DelayInFiles : public testing::TestWithParam<Case> {};

TEST_P(DelayInFiles, HasTheBitsOfTheReferenceLoop) {
  const Layout layout = GetParam().layout;
  const TemporaryDirectory directory;
  TrainingOptions options = options_of(GetParam());
  options.loss_scale = {.initial = 0x1p22, .window = 2};  // in f16 the first gradients overflow
  const Trainings expected = reference(layout, options, 1);
  const auto in_file = [&](double ratio) { return ShardedParameters::Options::InFile{directory.path(), ratio}; };
  for (const double ratio : {0.0, 0.5}) {
    options.sharding.offload.optimizer = in_file(ratio);
    EXPECT_TRUE(delayed(layout, options) == expected) << GetParam().text() << ", ratio " << ratio;
  }
  if (options.sharding.zero == ZeroStage::values) {
    options.sharding.offload.values = in_file(0);
    EXPECT_TRUE(delayed(layout, options) == expected) << GetParam().text() << ", values in a file";
  }
  if (options.sharding.zero >= ZeroStage::gradients) {
    options.sharding.offload.gradients = in_file(0);
    EXPECT_TRUE(delayed(layout, options) == expected) << GetParam().text() << ", gradients in a file";
    options.sharding.offload.optimizer = {};
    EXPECT_TRUE(delayed(layout, options) == expected) << GetParam().text() << ", gradients in a file, state in memory";
    options.sharding.offload.optimizer = in_file(0);
  }
  options.sharding.overlap = false;
  EXPECT_TRUE(delayed(layout, options) == expected) << GetParam().text() << " without overlap";
}

std::vector<Case> cases_in_files() {
  using enum ZeroStage;
  return {{{1}, none, "adamw"},
          {{1}, optimizer, "muon", DType::bf16},
          {{2}, none, "sgd", DType::bf16},
          {{2}, optimizer, "momentum"},
          {{2}, optimizer, "adamw", DType::f64},
          {{2}, gradients, "muon"},
          {{2}, values, "muon", DType::bf16},
          {{2}, values, "sgd"},
          {{4}, gradients, "adamw", DType::f16},
          {{4}, values, "adamw"},
          {{2, 2}, optimizer, "muon"},
          {{2, 1, 2}, gradients, "momentum", DType::f32, "interleaved"},
          {{2, 2, 2}, values, "adamw", DType::bf16}};
}

INSTANTIATE_TEST_SUITE_P(Layouts, DelayInFiles, testing::ValuesIn(of_today(cases_in_files(), 4)), name_of);

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

// Trains until a step, saves, and goes on in another trainer, beside one that is not interrupted.
enum class InFiles : std::uint8_t { nothing, state, state_and_gradients };
Trainings resumed(const Case& from, const Case& to, int saved_after, InFiles in_files = InFiles::nothing) {
  const TemporaryDirectory directory, scratch;
  TrainingOptions options = options_of(from);
  if (in_files != InFiles::nothing) options.sharding.offload.optimizer.directory = scratch.path();
  if (in_files == InFiles::state_and_gradients) options.sharding.offload.gradients.directory = scratch.path();
  options.sharding.delay = 1;
  options.loss_scale = {.initial = 0x1p23, .window = 2};
  on_ranks(from.layout, options, [&](Trainer& trainer, Training&) {
    for (int t = 0; t < saved_after; ++t) trainer.step(text_of_step(options, t), rate(t));
    save_checkpoint(trainer.sharded(), trainer.optimizer(), directory.path(), saved_after, trainer.notes());
    trainer.step(text_of_step(options, 7), rate(7));  // of which the checkpoint must not know
  });
  options.sharding.zero = to.zero;
  return on_ranks(to.layout, options, [&](Trainer& trainer, Training& its) {
    const LoadedCheckpoint loaded =
        load_checkpoint(trainer.sharded(), trainer.optimizer(), find_checkpoint(directory.path()), true);
    trainer.optimizer().restore(loaded.optimizer_steps);
    trainer.restore(loaded.notes);
    for (auto t = static_cast<int>(loaded.step); t < steps_of_training; ++t) {
      note(its, trainer.step(text_of_step(options, t), rate(t)));
    }
    note(its, trainer.finish());
  });
}

TEST(Delay, GoesOnFromACheckpointBitForBit) {
  for (const DType dtype : of_today({DType::f32, DType::bf16, DType::f16}, 3)) {
    for (const Case& its :
         {Case{{2}, ZeroStage::none, "adamw", dtype}, Case{{2, 2, 2}, ZeroStage::optimizer, "adamw", dtype},
          Case{{2, 1, 2}, ZeroStage::gradients, "momentum", dtype}, Case{{2}, ZeroStage::gradients, "adamw", dtype}}) {
      TrainingOptions options = options_of(its);
      options.loss_scale = {.initial = 0x1p23, .window = 2};
      const Trainings whole = delayed(its.layout, options);
      for (const int saved_after : {1, 2, 3}) {
        const InFiles in_files = its.zero == ZeroStage::gradients ? InFiles::state_and_gradients
                                 : saved_after == 2               ? InFiles::nothing
                                                                  : InFiles::state;
        const Trainings rest = resumed(its, its, saved_after, in_files);
        for (std::size_t rank = 0; rank < rest.size(); ++rank) {
          const auto behind = whole[rank].norms.end() - static_cast<std::ptrdiff_t>(rest[rank].norms.size());
          Comparer bits(equal_bits);
          EXPECT_EQ(bits.numbers({behind, whole[rank].norms.end()}, rest[rank].norms, "norm"), "") << its.text();
          EXPECT_EQ(bits.pieces(whole[rank].parameters, rest[rank].parameters, "parameter"), "")
              << its.text() << ", saved after " << saved_after;
        }
      }
    }
  }
}

// Gradients of a checkpoint that are late already cannot wait for a later update.
TEST(Delay, BeginsNotAfterTheGradientsOfACheckpoint) {
  const TemporaryDirectory directory;
  TrainingOptions options = options_of({{1}});
  options.sharding.delay = 1;
  on_ranks({1}, options, [&](Trainer& trainer, Training&) {
    for (int t = 0; t < 3; ++t) trainer.step(text_of_step(options, t), rate(t));  // two updates
    save_checkpoint(trainer.sharded(), trainer.optimizer(), directory.path(), 3, trainer.notes());
  });
  for (const int from : {2, 3}) {
    options.delay_from = from;
    on_ranks({1}, options, [&](Trainer& trainer, Training&) {
      const LoadedCheckpoint loaded =
          load_checkpoint(trainer.sharded(), trainer.optimizer(), find_checkpoint(directory.path()), true);
      trainer.optimizer().restore(loaded.optimizer_steps);
      if (from == 2) return trainer.restore(loaded.notes);
      expect_refusal([&] { trainer.restore(loaded.notes); }, "behind 2 updates, and the delay is to begin behind 3");
    });
  }
}

// Sums over other ranks round otherwise.
TEST(Delay, GoesOnInAnotherLayout) {
  const Case from{{2, 2}, ZeroStage::optimizer, "adamw", DType::f64};
  const Trainings whole = resumed(from, from, 2);
  for (Case to : {Case{{1}}, Case{{4}, ZeroStage::gradients}, Case{{2}, ZeroStage::none}}) {
    to.dtype = DType::f64;
    const Trainings rest = resumed(from, to, 2);
    for (std::size_t i = 0; i < rest.front().norms.size(); ++i) {
      EXPECT_NEAR(rest.front().norms[i] / whole.front().norms[i], 1, parity_tolerance) << to.text();
    }
    EXPECT_EQ(rest.front().norms.size(), whole.front().norms.size());
  }
}

}  // namespace
}  // namespace parity
