// A checkpoint of adapters alone goes on in any layout, on the same base; and adapters begin on a checkpoint without any.
#include <gmock/gmock.h>

#include <filesystem>

#include "matrix.hpp"
#include "stretto/layers/checkpoint.hpp"
#include "support/temporary_directory.hpp"

namespace parity::adapters_resume {
namespace {

constexpr std::int64_t saved_step = 2, all_steps = 4;

struct How {
  Layout layout;
  ZeroStage zero = ZeroStage::none;
  bool own_rows = false;
};

TrainingOptions options_for(const How& how, bool adapts = true) {
  TrainingOptions options = tiny({});
  options.global_batch = 4;
  options.divides_rows = how.own_rows;
  options.sharding.zero = how.zero;
  if (adapts) options.adapters = {.rank = 3, .targets = {"all-linear"}};
  return options;
}

// Loads from `resume`, if given, and saves into `save` after saved_step.
std::vector<double> losses_of(const How& how, const std::string& resume, const std::string& save, bool trained_only = true) {
  std::vector<double> losses;
  run_threads(how.layout.ranks(), [&](const Communicator& world) {
    Trainer trainer(Mesh(world, how.layout.mesh()), options_for(how));
    std::int64_t step = 0;
    if (!resume.empty()) {
      const LoadedCheckpoint loaded = load_checkpoint(trainer.sharded(), trainer.optimizer(), find_checkpoint(resume), true);
      trainer.optimizer().restore(loaded.optimizer_steps);
      EXPECT_EQ(loaded.trained_only, trained_only);
      step = loaded.step;
    }
    for (; step < all_steps; ++step) {
      if (step == saved_step && !save.empty()) {
        CheckpointSaver saver(trainer.sharded(), trainer.optimizer(), save, {.trained_only = trained_only});
        saver.save(step);
        saver.wait();
      }
      const double loss = trainer.step(text_of_step(trainer.options(), step), 3e-2).loss;
      if (world.rank() == 0) losses.push_back(loss);
    }
  });
  return losses;
}

std::uintmax_t bytes_in(const std::string& directory) {
  std::uintmax_t bytes = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory)) {
    if (entry.path().extension() == ".safetensors") bytes += entry.file_size();
  }
  return bytes;
}

TEST(AdaptersResume, GoOnInAnyLayoutFromAdaptersAlone) {
  const std::vector<How> ways = {{},
                                 {{.data = 2}, ZeroStage::values},
                                 {{.tensor = 2}, ZeroStage::none, true},
                                 {{.data = 2, .tensor = 2}, ZeroStage::gradients},
                                 {{.pipeline = 2}}};
  const std::vector<double> whole = losses_of(ways.front(), "", "");
  EXPECT_LT(whole.back(), whole.front());
  for (const How& from : ways) {
    const TemporaryDirectory directory, full;
    losses_of(from, "", directory.path());
    losses_of(from, "", full.path(), false);
    EXPECT_LT(bytes_in(directory.path()), bytes_in(full.path()) / 2);
    for (const How& to : ways) {
      const std::vector<double> rest = losses_of(to, directory.path(), "");
      ASSERT_EQ(rest.size(), static_cast<std::size_t>(all_steps - saved_step));
      for (std::size_t i = 0; i < rest.size(); ++i) EXPECT_NEAR(rest[i], whole[saved_step + i], 1e-10 * whole[i]);
    }
  }
}

TEST(AdaptersResume, BeginOnACheckpointWithoutAny) {
  const TemporaryDirectory directory;
  run_threads(1, [&](const Communicator& world) {
    Trainer base(Mesh(world, {}), options_for({}, false));
    base.step(text_of_step(base.options(), 0), 3e-2);
    save_checkpoint(base.sharded(), base.optimizer(), directory.path(), 1);
    Trainer trainer(Mesh(world, {}), options_for({}));
    const auto load = [&](Trainer& into, bool with_optimizer) {
      load_checkpoint(into.sharded(), into.optimizer(), find_checkpoint(directory.path()), with_optimizer);
    };
    EXPECT_THAT(sentence_of([&] { load(trainer, true); }), testing::HasSubstr("lora_A.weight, which this model has"));
    load(trainer, false);
    trainer.optimizer().restore(0);
    EXPECT_EQ(trainer.compute_gradients(text_of_step(base.options(), 1)).loss,
              base.compute_gradients(text_of_step(base.options(), 1)).loss);
  });
}

}  // namespace
}  // namespace parity::adapters_resume
