// Training without a flush: weights have the bits of the loop of window_loop.hpp, with the memory and the traffic that
// formulas say.
#include <gmock/gmock.h>

#include <random>
#include <thread>

#include "stretto/planning/stage_plan.hpp"
#include "support/error.hpp"
#include "support/tiers.hpp"
#include "window_loop.hpp"

namespace parity {
namespace {

const std::vector<WindowCell> window_cells = {
    {{1, 1, 1}, "2bw", 3},
    {{1, 1, 1}, "pipedream", 2},
    {{1, 1, 1}, "pipemare", 2, ZeroStage::none, SGD::Options{.momentum = 0}},
    {{1, 1, 1}, "pipemare", 3},
    {{1, 1, 2}, "2bw", 2, ZeroStage::none, SGD::Options{.momentum = 0}},
    {{1, 1, 2}, "pipedream", 3, ZeroStage::none, SGD::Options{.momentum = 0.9}},
    {{1, 1, 3}, "2bw", 4, ZeroStage::none, SGD::Options{.momentum = 0.9}},
    {{1, 1, 3}, "pipedream-vertical", 3},
    {{1, 1, 4}, "2bw", 4},
    {{1, 1, 1}, "2bw-joint", 2},
    {{1, 1, 3}, "2bw-joint", 3},
    {{2, 2, 2}, "2bw-joint", 3},
    {{2, 1, 2}, "2bw", 2, ZeroStage::optimizer, Muon::Options()},
    {{1, 1, 4}, "pipedream", 5, ZeroStage::none, AdamW::Options(), Recompute::full},
    {{2, 1, 2}, "2bw", 3, ZeroStage::none},
    {{2, 1, 2}, "pipedream", 2, ZeroStage::optimizer, AdamW::Options(), Recompute::full},
    {{2, 2, 2}, "2bw", 2, ZeroStage::optimizer},
    {{2, 2, 2}, "2bw", 3, ZeroStage::none, SGD::Options{.momentum = 0.9}, Recompute::none, false},
    {{2, 2, 2}, "pipedream-vertical", 2, ZeroStage::none},
    {{1, 2, 2, 2}, "2bw", 2, ZeroStage::optimizer, AdamW::Options(), Recompute::full},
};

class TrainingWindows : public testing::TestWithParam<WindowCell> {};

TEST_P(TrainingWindows, HaveTheBitsOfTheLoop) {
  const WindowCell& cell = GetParam();
  EXPECT_EQ(divergence(train_windows(cell, missing_of(cell.schedule))), "") << text_of(cell);
}

INSTANTIATE_TEST_SUITE_P(Cells, TrainingWindows, testing::ValuesIn(of_today(window_cells, 3)));

TEST(TrainingWindowsControl, ALoopWithOtherVersionsDiffers) {
  for (const char* const schedule : {"2bw", "pipedream", "pipedream-vertical"}) {
    const WindowCell cell{{1, 1, 2}, schedule, 2};
    for (const int by : {-1, 1}) {
      const auto other = [&](int stage, int stages) { return std::max(0, missing_of(schedule)(stage, stages) + by); };
      if (other(0, 2) == missing_of(schedule)(0, 2) && other(1, 2) == missing_of(schedule)(1, 2)) continue;
      EXPECT_NE(divergence(train_windows(cell, other)), "") << schedule << ", " << by;
    }
  }
}

// ---- what comes while microbatches are under way

// As a checkpoint does, stages wait for each other behind an update, wherever the others are.
TEST(TrainingWindowsInFlight, MayMeetBehindEachStepWithoutChangingABit) {
  for (const auto& [schedule, stages] :
       {std::pair{"2bw", 2}, {"2bw", 4}, {"pipedream", 3}, {"pipedream", 4}, {"pipedream-vertical", 3}}) {
    for (const int microbatches : {stages, stages + 2}) {
      const WindowCell cell{{1, 1, stages}, schedule, microbatches};
      TrainingOptions options = options_of(cell);
      options.mesh = cell.layout.mesh();
      options.saves_in_flight = true;
      std::vector<Pieces> found[2];
      for (auto& its : found) its.resize(static_cast<std::size_t>(stages));
      run_threads(stages, [&](const Communicator& world) {
        const Mesh mesh(world, cell.layout.mesh());
        for (const bool meets : {false, true}) {
          Trainer trainer(mesh, options);
          std::vector<std::int64_t> steps, reported;
          std::mt19937 random(static_cast<unsigned>(world.rank()) + 1);
          trainer.run({.count = 30,
                       .fill_of =
                           [&](std::int64_t step) {
                             std::this_thread::sleep_for(std::chrono::microseconds(random() % 500));
                             return text_of_step(options, step);
                           },
                       .lr_of = [](std::int64_t) { return window_lr; },
                       .updated =
                           [&](std::int64_t step) {
                             EXPECT_TRUE(trainer.sharded().in_flight());
                             steps.push_back(step);
                             EXPECT_EQ(reported, steps) << "a step is reported before it is saved";
                             if (meets) world.barrier(Stream::inline_()).wait();
                           },
                       .done = [&](std::int64_t step, const StepResult&) { reported.push_back(step); }});
          EXPECT_EQ(steps.size(), 30U);
          found[meets ? 1 : 0][static_cast<std::size_t>(world.rank())] =
              pieces_of(trainer, trainer.sharded().whole_values());
        }
      });
      for (std::size_t rank = 0; rank < found[0].size(); ++rank) {
        Comparer bits(equal_bits);
        EXPECT_EQ(bits.pieces(found[0][rank], found[1][rank], "parameter"), "") << text_of(cell);
      }
    }
  }
}

// What a stage's values take beyond those of a schedule that flushes: its older versions.
TEST(TrainingWindowsMemory, IsThatOfTheVersionsByFormula) {
  for (const char* const schedule : {"2bw", "2bw-joint", "pipedream", "pipedream-vertical", "pipemare"}) {
    const WindowCell cell{{2, 1, 3}, schedule, 3};
    TrainingOptions options = options_of(cell);
    options.mesh = cell.layout.mesh();
    const TrainingOptions flushes = flushing(options, false);
    std::int64_t planned = 0, planned_flushing = 0;
    for (int stage = 0; stage < 3; ++stage) {
      const auto values_of = [&](const TrainingOptions& its) { return plan_stage(its, its.check(), stage).memory.values; };
      const std::map<std::string, int> by_kind{{"2bw", 2},
                                               {"2bw-joint", stage < 2 ? 2 : 1},
                                               {"pipedream", 3 - stage},
                                               {"pipedream-vertical", 3},
                                               {"pipemare", stage < 2 ? 2 : 1}};
      const int versions = by_kind.at(schedule);
      EXPECT_EQ(values_of(options), versions * values_of(flushes)) << schedule << ", stage " << stage;
      planned += 2 * values_of(options);
      planned_flushing += 2 * values_of(flushes);
    }
    // Ranks are threads of one process, whose memory is counted together.
    for (const auto& [its, plan] : {std::pair{options, planned}, {flushes, planned_flushing}}) {
      std::int64_t held = 0;
      run_threads(6, [&, its = its](const Communicator& world) {
        const auto before = static_cast<std::int64_t>(memory_use(MemoryKind::values).bytes);
        world.barrier(Stream::inline_()).wait();
        const Trainer trainer(Mesh(world, cell.layout.mesh()), its);
        world.barrier(Stream::inline_()).wait();
        if (world.rank() == 0) held = static_cast<std::int64_t>(memory_use(MemoryKind::values).bytes) - before;
        world.barrier(Stream::inline_()).wait();
      });
      EXPECT_EQ(held, plan) << schedule;
    }
  }
}

// Of a step, between stages: as many messages and bytes as those of 1F1B.
TEST(TrainingWindowsTraffic, IsThatOfAFlush) {
  const auto sent = [](const WindowCell& cell, bool flushes) {
    std::map<std::string, std::pair<std::int64_t, std::uint64_t>> found;  // messages and bytes, by tag and sender
    std::mutex mutex;
    TrainingOptions options = options_of(cell);
    options.mesh = cell.layout.mesh();
    if (flushes) options = flushing(options, false);
    run_threads(cell.layout.ranks(), [&](const Communicator& world) {
      Trainer trainer(Mesh(world, cell.layout.mesh()), options);
      const std::uint64_t first = world.job().ledger().next_sequence();
      trainer.run({.count = 3,
                   .fill_of = [&](std::int64_t step) { return text_of_step(options, step); },
                   .lr_of = [](std::int64_t) { return window_lr; },
                   .done = {}});
      const std::lock_guard lock(mutex);
      for (const Record& record : world.job().ledger().records(first)) {
        if (!record.tag.starts_with("activations") && !record.tag.starts_with("gradients of activations")) continue;
        auto& [messages, bytes] = found[fmt::format("{} of rank {}", record.tag, world.rank())];
        ++messages;
        bytes += record.bytes_sent;
      }
    });
    return found;
  };
  for (const char* const schedule : {"2bw", "2bw-joint", "pipedream", "pipedream-vertical", "pipemare"}) {
    const WindowCell cell{{1, 1, 3}, schedule, 4};
    EXPECT_EQ(sent(cell, false), sent(cell, true)) << schedule;
    EXPECT_NE(sent(cell, false), sent({{1, 1, 3}, schedule, 5}, true)) << "the control: a microbatch more";
  }
}

TEST(TrainingWindowsRefusals, AreSentences) {
  const WindowCell cell{{1, 1, 2}, "2bw", 2};
  const auto refusal = [&](const std::function<void(TrainingOptions&)>& change) {
    TrainingOptions options = options_of(cell);
    options.mesh = cell.layout.mesh();
    change(options);
    return sentence_of([&] { options.check(); });
  };
  for (const char* const schedule : {"pipedream", "pipedream-vertical", "pipemare"}) {
    EXPECT_THAT(refusal([&](TrainingOptions& its) {
                  its.stages.schedule_name = schedule;
                  its.model.tied = true;
                }),
                testing::HasSubstr("untie it"));
    EXPECT_THAT(refusal([&](TrainingOptions& its) {
                  its.stages.schedule_name = schedule;
                  its.sharding.dtype = DType::f16;
                }),
                testing::HasSubstr("bf16 or fp32"));
  }
  EXPECT_THAT(refusal([](TrainingOptions& its) {
                its.model.tied = true;
                its.sharding.overlap = false;
              }),
              testing::HasSubstr("needs overlap"));
  EXPECT_THAT(refusal([](TrainingOptions& its) { its.sharding.zero = ZeroStage::gradients; }),
              testing::HasSubstr("ZeRO stage 2"));
  for (const char* const schedule : {"pipedream", "1f1b", "2bw-joint"}) {
    EXPECT_THAT(refusal([&](TrainingOptions& its) {
                  its.stages.schedule_name = schedule;
                  its.clip_norm = 1;
                  its.clips_by_step_before = true;
                }),
                testing::HasSubstr("by the norm of the step before"));
  }
  for (const char* const schedule : {"pipemare", "1f1b", "2bw-joint"}) {
    EXPECT_THAT(refusal([&](TrainingOptions& its) {
                  its.stages.schedule_name = schedule;
                  its.saves_in_flight = true;
                }),
                testing::HasSubstr("let a checkpoint empty the pipeline"));
  }
  run_threads(2, [&](const Communicator& world) {
    Trainer trainer(Mesh(world, cell.layout.mesh()), options_of(cell));
    expect_refusal([&] { trainer.step(text_of_step(options_of(cell), 0), window_lr); },
                   "Schedule 2bw runs steps without a flush");
  });
}

}  // namespace
}  // namespace parity
