// Gradients that are one step late: training goes on from a checkpoint.
#include <gmock/gmock.h>

#include "delayed.hpp"
#include "stretto/layers/checkpoint.hpp"
#include "support/error.hpp"
#include "support/temporary_directory.hpp"
#include "support/tiers.hpp"

namespace parity::delay {
namespace {

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

TEST(DelayResume, GoesOnFromACheckpointBitForBit) {
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
TEST(DelayResume, BeginsNotAfterTheGradientsOfACheckpoint) {
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
TEST(DelayResume, GoesOnInAnotherLayout) {
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
}  // namespace parity::delay
