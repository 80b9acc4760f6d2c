// Clipping without a flush: by the norm of the step before, for which no stage waits.
#include <future>

#include "window_loop.hpp"

namespace parity {
namespace {

TEST(TrainingWindowsClipping, IsByTheNormOfTheStepBefore) {
  for (const WindowCell& cell : {WindowCell{{1, 1, 3}, "2bw", 3}, {{2, 2, 2}, "2bw", 2}, {{1, 1, 1}, "2bw", 2}}) {
    const MissingUpdates missing = missing_of("2bw");
    EXPECT_EQ(divergence(train_windows(cell, missing, {.most = 0.1})), "") << text_of(cell);
    EXPECT_NE(divergence(train_windows(cell, missing, {.most = 0.1, .own = true})), "") << "the control: of the same step";
  }
}

// The first stage does not update before the last one computes on. Only where a checkpoint is saved is the norm of the step
// itself needed, for which all stages must have updated.
TEST(TrainingWindowsClipping, LetsAStageGoOnWhileOthersHaveNotUpdated) {
  const WindowCell cell{{1, 1, 2}, "2bw", 2};
  TrainingOptions options = options_of(cell);
  options.mesh = cell.layout.mesh();
  options.clip_norm = 0.1;
  options.clips_by_step_before = true;
  for (const bool saves_in_flight : {false, true}) {
    options.saves_in_flight = saves_in_flight;
    std::promise<void> goes_on;
    std::future<void> has_gone_on = goes_on.get_future();
    run_threads(2, [&](const Communicator& world) {
      Trainer trainer(Mesh(world, cell.layout.mesh()), options);
      const bool is_first = world.rank() == 0;
      trainer.run({.count = 2,
                   .fill_of =
                       [&](std::int64_t step) {
                         if (!is_first && step == 1) goes_on.set_value();
                         return text_of_step(options, step);
                       },
                   .lr_of =
                       [&](std::int64_t step) {
                         if (is_first && step == 0) {
                           EXPECT_EQ(has_gone_on.wait_for(std::chrono::seconds(20)), std::future_status::ready);
                         }
                         return window_lr;
                       },
                   .saves = [](std::int64_t) { return false; },
                   .updated = [](std::int64_t) { ADD_FAILURE() << "nothing is saved"; },
                   .done = {}});
    });
  }
}

}  // namespace
}  // namespace parity
