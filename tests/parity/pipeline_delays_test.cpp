// Training on data x tensor x pipeline ranks that are held up at random: before every action of the schedule and, by
// signals, anywhere else. No rank may deadlock, and every bit must be that of undisturbed ranks.
//
// A failure says its seed; --gtest_random_seed=SEED draws the same delays before actions again.
#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "by_hand.hpp"
#include "support/random_interruptions.hpp"
#include "support/tiers.hpp"

namespace parity {
namespace {

#ifdef STRETTO_SANITIZE
constexpr int steps_of_a_run = 3;
int delayed_runs() { return 1; }
#else
constexpr int steps_of_a_run = 8;
int delayed_runs() { return all_tests() ? 9 : 1; }  // of each schedule: 500 steps over all
#endif

constexpr Layout mesh_of_8{2, 2, 2};

std::vector<Trace> traces_of(const TrainingOptions& options, const Fault& fault) {
  std::vector<Trace> traces(static_cast<std::size_t>(mesh_of_8.ranks()));
  run_threads(mesh_of_8.ranks(), [&](const Communicator& world) {
    traces[static_cast<std::size_t>(world.rank())] = train_by_hand(world, mesh_of_8, options, fault, steps_of_a_run);
  });
  return traces;
}

Tensor delayed(PipelineStage& stage, const Action& action, Tensor input, unsigned seed) {
  static std::atomic<unsigned> threads = 0;
  thread_local std::mt19937 engine(seed + ++threads);
  if (engine() % 2 == 0) std::this_thread::sleep_for(std::chrono::microseconds(engine() % 500));
  return stage.compute(action, std::move(input));
}

TrainingOptions options_of(ScheduleKind schedule, ZeroStage stage) {
  TrainingOptions options = tiny(mesh_of_8);
  options.model.layers = 5;
  options.model.sequence = 16;
  options.stages.schedule_name = name(schedule);
  options.global_batch = 4L * mesh_of_8.data;
  options.sharding.zero = stage;
  return options;
}

TEST(PipelineDelays, ChangeNoBitAndBlockNobody) {
  const unsigned seed = drawn_seed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  int stage = 0;
  for (const ScheduleKind schedule : all_schedule_kinds()) {
    const TrainingOptions options = options_of(schedule, zero_stages[static_cast<std::size_t>(stage++ % 4)]);
    const std::vector<Trace> expected = traces_of(options, {});
    const RandomInterruptions interruptions(seed);
    const Fault delays{.in_stage = [&](PipelineStage& of, const Action& action, Tensor input) {
      return delayed(of, action, std::move(input), seed);
    }};
    for (int run = 0; run < delayed_runs() && !HasFailure(); ++run) {
      EXPECT_EQ(divergence(expected, traces_of(options, delays)), "") << name(schedule);
    }
  }
}

// Or the comparison above proves nothing.
TEST(PipelineDelays, ControlsSeeAMessageOfAnotherMicrobatchAndAWeightGradientLeftOut) {
  const TrainingOptions options = options_of(ScheduleKind::zb_h1, ZeroStage::optimizer);
  const std::vector<Trace> expected = traces_of(options, {});
  EXPECT_NE(divergence(expected, traces_of(options, {.in_stage = with_message_of_another})), "");
  const Fault left_out{.in_stage = [](PipelineStage& stage, const Action& action, Tensor input) {
    if (action.kind == ActionKind::backward_weight && action.microbatch == 2) return Tensor();
    return stage.compute(action, std::move(input));
  }};
  EXPECT_NE(divergence(expected, traces_of(options, left_out)), "");
}

}  // namespace
}  // namespace parity
