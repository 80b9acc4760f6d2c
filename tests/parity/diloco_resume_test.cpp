// Training in replicas that agree every H steps (DiLoCo) goes on from a checkpoint, with their number or another one.
#include <gmock/gmock.h>

#include <optional>

#include "replicated.hpp"
#include "stretto/layers/checkpoint.hpp"
#include "support/error.hpp"
#include "support/temporary_directory.hpp"

namespace parity {
namespace {

void save(Trainer& trainer, const Communicator& all, const std::string& directory, std::int64_t step) {
  CheckpointSaver(trainer.sharded(), trainer.optimizer(), directory, {.ranks = all}).save(step);
}

// Saves after `saved` steps, or goes on from there; `settles`: before it is saved.
Trained resumed(const Replicated& how, std::int64_t steps, const std::string& directory, std::optional<std::int64_t> saved,
                bool settles = true) {
  Trained trained;
  trained.states.resize(static_cast<std::size_t>(how.ranks()));
  run_threads(how.ranks(), [&](const Communicator& world) {
    const ReplicaGroups groups = split_into_replicas(world, how.diloco.replicas);
    Trainer trainer(Mesh(groups.replica, how.layout.mesh()), how.options(), groups.peers);
    std::int64_t step = 0;
    if (!saved) {
      const LoadedCheckpoint loaded =
          load_checkpoint(trainer.sharded(), trainer.optimizer(), find_checkpoint(directory), true, groups.peers.rank());
      EXPECT_EQ(loaded.replicas, how.diloco.replicas);
      trainer.optimizer().restore(loaded.optimizer_steps);
      step = loaded.step;
    }
    for (; step < steps; ++step) {
      if (saved && step == *saved) {
        if (settles) trainer.diloco()->settle();
        save(trainer, world, directory, step);
      }
      const double loss = trainer.step(text_of_step(trainer.options(), step), inner_rate).loss;
      if (world.rank() == 0) trained.losses.push_back(loss);
    }
    trained.states[static_cast<std::size_t>(world.rank())] =
        state_of(trainer, kind_of(how.options().optimizer).slots.size(), how.measures);
  });
  return trained;
}

// From every step of a round, also while a fragment is in flight, with and without errors that are fed back.
TEST(DiLoCoResume, GoesOnFromACheckpointBitForBit) {
  Replicated of_tensor_ranks = in_format(QuantizedFormat::int8);
  of_tensor_ranks.layout = {.tensor = 2};
  for (const Replicated& how : {in_format(QuantizedFormat::none), in_format(QuantizedFormat::int8), of_tensor_ranks}) {
    for (std::int64_t saved = 3; saved < 7; ++saved) {
      const TemporaryDirectory directory;
      const Trained whole = resumed(how, 10, directory.path(), saved);
      EXPECT_EQ(whole.states, train_replicas(how, 10).states) << "saving changes nothing";
      EXPECT_EQ(resumed(how, 10, directory.path(), std::nullopt).states, whole.states)
          << how.text() << ", " << name(how.diloco.format) << ", step " << saved;
    }
  }
}

// Earlier versions also quantized what several ranks of a replica have copies of. Errors in their checkpoints have other
// sizes, and are left out.
TEST(DiLoCoResume, GoesOnWithoutErrorsOfAnotherSize) {
  const Replicated how = in_format(QuantizedFormat::int8);
  const auto with_others = [](Trainer& trainer, std::int64_t step) {
    if (step == 0) trainer.sharded().errors().restore("diloco.0", Hop::contribution, Tensor::of<float>({1, 2, 3}));
  };
  EXPECT_EQ(train_replicas(how, 8, with_others).states, train_replicas(how, 8).states);
}

TEST(DiLoCoResume, ControlDiffersWhereAnExchangeInFlightWasNotSettled) {
  const Replicated how = in_format(QuantizedFormat::none);
  const TemporaryDirectory directory;
  const Trained whole = resumed(how, 10, directory.path(), 4, false);
  EXPECT_NE(resumed(how, 10, directory.path(), std::nullopt).states, whole.states);
}

// The layout inside replicas may change; their number may not, but a job may begin with the first one's values.
TEST(DiLoCoResume, GoesOnInAnotherLayoutOfReplicas) {
  Replicated from{{.replicas = 2, .sync_every = 4, .fragments = 2, .fragment_sync_delay = 1},
                  {.data = 2},
                  ZeroStage::optimizer,
                  DType::f64};
  Replicated to = from;
  to.layout = {.tensor = 2};
  to.zero = ZeroStage::none;
  const TemporaryDirectory directory;
  const Trained whole = resumed(from, 8, directory.path(), 4);
  const Trained rest = resumed(to, 8, directory.path(), std::nullopt);
  ASSERT_EQ(rest.losses.size(), 4U);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_NEAR(rest.losses[i] / whole.losses[4 + i], 1, parity_tolerance) << i;
  run_threads(1, [&](const Communicator& world) {
    TrainingOptions alone = from.options();
    alone.diloco = {};
    Trainer trainer(Mesh(world, {}), on_one_rank(alone));
    const std::string checkpoint = find_checkpoint(directory.path());
    const LoadedCheckpoint loaded = load_checkpoint(trainer.sharded(), trainer.optimizer(), checkpoint, false);
    EXPECT_EQ(loaded.replicas, 2);
    expect_refusal([&] { load_checkpoint(trainer.sharded(), trainer.optimizer(), checkpoint, true); },
                   "adamw (m, v, outer, outer_momentum)");
    EXPECT_THAT(
        sentence_of(ErrorCode::io, [&] { load_checkpoint(trainer.sharded(), trainer.optimizer(), checkpoint, false, 2); }),
        testing::HasSubstr("has 2 replicas, and not one of number 2"));
  });
}

}  // namespace
}  // namespace parity
