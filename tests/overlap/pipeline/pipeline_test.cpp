// Schedules that run: every stage computes what one stage that holds the whole model computes, whatever the order, and the
// messages are as many as the formula says.
#include "stretto/overlap/pipeline.hpp"

#include <gtest/gtest.h>

#include <mutex>
#include <random>
#include <thread>

#include "stretto/overlap/rehearsal.hpp"
#include "stretto/stretto.hpp"
#include "support/error.hpp"
#include "support/random_interruptions.hpp"
#include "support/variables.hpp"
#include "toy_stage.hpp"

namespace stretto {
namespace {

#ifdef STRETTO_SANITIZE
constexpr int delayed_steps = 40;
#else
constexpr int delayed_steps = 500;
#endif

struct Results {
  std::map<int, std::vector<double>> weights, outputs;
  bool operator==(const Results&) const = default;
};
using Prepare = std::function<void(ToyStage&, const Communicator&)>;

// Runs `steps` steps of a schedule on threads, and merges what the stages have.
Results run(const Schedule& schedule, bool overlap = true, int steps = 1, const Prepare& prepare = {}) {
  Results results;
  std::mutex mutex;
  run_threads(schedule.stages, [&](const Communicator& world) {
    Pipeline pipeline(world, schedule, {.overlap = overlap});
    for (int step = 0; step < steps; ++step) {
      ToyStage stage(schedule, world.rank(), step);
      if (prepare) prepare(stage, world);
      pipeline.run(stage, ToyStage::message(), DType::f64);
      if (step + 1 < steps) continue;
      const std::lock_guard<std::mutex> lock(mutex);
      results.weights.insert(stage.weights().begin(), stage.weights().end());
      results.outputs.insert(stage.outputs().begin(), stage.outputs().end());
    }
  });
  return results;
}

// Gradient accumulation on one stage that holds all parts.
Results accumulated(int parts, int microbatches, int steps = 1) {
  return run(make_schedule(ScheduleKind::interleaved, 1, microbatches, parts), true, steps);
}

int chunks_of(ScheduleKind kind) { return kind == ScheduleKind::zb_v ? 2 : kind == ScheduleKind::interleaved ? 3 : 1; }

TEST(Pipeline, GivesTheBitsOfGradientAccumulation) {
  for (const ScheduleKind kind : all_schedule_kinds()) {
    for (const int stages : {1, 2, 3, 4}) {
      for (const int microbatches : {stages, 2 * stages, 12}) {
        const Schedule schedule = make_schedule(kind, stages, microbatches, chunks_of(kind));
        const Results expected = accumulated(schedule.parts(), microbatches);
        for (const bool overlap : {true, false}) {
          EXPECT_EQ(run(schedule, overlap), expected)
              << name(kind) << " " << stages << " stages, " << microbatches << " microbatches, overlap " << overlap;
        }
      }
    }
  }
}

TEST(Pipeline, RunsForwardsAlone) {
  for (const auto& [chunks, placement] :
       {std::pair{1, ChunkPlacement::round_robin}, {3, ChunkPlacement::round_robin}, {2, ChunkPlacement::v_shaped}}) {
    for (const int microbatches : {1, 2, 7}) {
      const int stages = 3;
      const Results expected = accumulated(stages * chunks, microbatches);
      const ScheduleKind kind = placement == ChunkPlacement::v_shaped ? ScheduleKind::zb_v : ScheduleKind::interleaved;
      const Schedule schedule = make_schedule(kind, stages, 6, chunks);
      run_threads(stages, [&](const Communicator& world) {
        Pipeline pipeline(world, schedule, {});
        ToyStage stage(schedule, world.rank());
        stage.forward_only = true;
        pipeline.run_forward(stage, microbatches, ToyStage::message(), DType::f64);
        const bool has_head = schedule.stage_of(schedule.parts() - 1) == world.rank();
        EXPECT_EQ(stage.outputs(), has_head ? expected.outputs : Results().outputs);
        EXPECT_TRUE(stage.weights().empty());
      });
    }
  }
}

// Two swapped microbatches must show, or the comparisons above prove nothing.
TEST(Pipeline, ControlSeesAMessageOfAnotherMicrobatch) {
  const Schedule schedule = make_schedule(ScheduleKind::gpipe, 2, 4);
  const Results swapped = run(schedule, true, 1, [](ToyStage& stage, const Communicator& world) {
    if (world.rank() == 0) stage.swaps_first_two = true;
  });
  EXPECT_NE(swapped, accumulated(2, 4));
}

// 2 (p v - 1) messages per microbatch, each of the message's bytes.
TEST(Pipeline, SendsAsManyMessagesAsTheFormulaSays) {
  for (const ScheduleKind kind : all_schedule_kinds()) {
    const Schedule schedule = make_schedule(kind, 3, 6, chunks_of(kind));
    std::atomic<std::uint64_t> bytes = 0;
    run_threads(3, [&](const Communicator& world) {
      Pipeline pipeline(world, schedule, {});
      ToyStage stage(schedule, world.rank());
      const std::uint64_t first = world.job().ledger().next_sequence();
      pipeline.run(stage, ToyStage::message(), DType::f64);
      for (const Record& record : world.job().ledger().records(first)) {
        if (record.collective == Collective::send) bytes += record.bytes_sent;
      }
    });
    // The turn of a V lies within one stage.
    const int messages = 2 * (schedule.parts() - (kind == ScheduleKind::zb_v ? 2 : 1));
    EXPECT_EQ(bytes, static_cast<std::uint64_t>(messages * 6 * 15 * 8)) << name(kind);
  }
}

// Between nodes, each of two tensor-parallel ranks sends its rows only. The three rows do not divide evenly.
TEST(Pipeline, ScattersMessagesBetweenNodes) {
  const Variable nodes("STRETTO_RANKS_PER_NODE", "2");
  const Schedule schedule = make_schedule(ScheduleKind::one_forward_one_backward, 2, 4);
  const Results expected = accumulated(2, 4);
  run_threads(4, [&](const Communicator& world) {
    const int stage_number = world.rank() / 2;
    const Communicator tensor = world.split(stage_number, world.rank(), "tp");
    const Communicator stages = world.split(world.rank() % 2, world.rank(), "pp");
    Pipeline pipeline(stages, schedule, {.tensor = tensor});
    ToyStage stage(schedule, stage_number);
    const std::uint64_t first = world.job().ledger().next_sequence();
    pipeline.run(stage, ToyStage::message(), DType::f64);
    const Traffic traffic = world.job().ledger().traffic(first);
    const std::uint64_t rows = tensor.rank() == 0 ? 2 : 1;
    EXPECT_EQ(traffic.bytes_between_nodes, 4 * rows * 5 * 8);
    EXPECT_EQ(stage.weights().at(stage_number), expected.weights.at(stage_number));
  });
}

// A serial rehearsal waits for each message where it starts it. Rehearsals of a part of the step only end.
TEST(Pipeline, IsRehearsedInEveryWay) {
  for (const ScheduleKind kind : all_schedule_kinds()) {
    const Schedule schedule = make_schedule(kind, 3, 6, chunks_of(kind));
    const Results expected = accumulated(schedule.parts(), 6);
    run_threads(3, [&](const Communicator& world) {
      Pipeline pipeline(world, schedule, {});
      for (const Rehearsal way : {Rehearsal::computation, Rehearsal::communication, Rehearsal::serial, Rehearsal::full}) {
        ToyStage stage(schedule, world.rank());
        {
          const RehearsalScope scope(way);
          pipeline.run(stage, ToyStage::message(), DType::f64);
        }
        EXPECT_EQ(stage.weights().size(), static_cast<std::size_t>(schedule.chunks));
        if (way == Rehearsal::computation || way == Rehearsal::communication) continue;
        for (const auto& [part, weight] : stage.weights()) {
          EXPECT_EQ(weight, expected.weights.at(part)) << name(kind) << ", " << name(way);
        }
      }
    });
  }
}

// Delays before every action, and inside messages: no deadlock, and the same bits.
TEST(Pipeline, RandomDelaysChangeNoBit) {
  const RandomInterruptions interruptions(7);
  const std::vector<ScheduleKind> kinds = all_schedule_kinds();
  for (const ScheduleKind kind : kinds) {
    const int steps = delayed_steps / static_cast<int>(kinds.size());
    const Schedule schedule = make_schedule(kind, 4, 8, kind == ScheduleKind::interleaved ? 2 : chunks_of(kind));
    const Prepare delays = [](ToyStage& stage, const Communicator& world) {
      stage.before = [engine = std::mt19937(static_cast<unsigned>(world.rank()))](const Action&) mutable {
        if (engine() % 3 == 0) std::this_thread::sleep_for(std::chrono::microseconds(engine() % 200));
      };
    };
    const Results expected = accumulated(schedule.parts(), 8, steps);
    EXPECT_EQ(run(schedule, true, steps, delays), expected) << name(kind);
    const Prepare swapped = [&](ToyStage& stage, const Communicator& world) {  // the control
      delays(stage, world);
      stage.swaps_first_two = true;
    };
    EXPECT_NE(run(schedule, true, 1, swapped), accumulated(schedule.parts(), 8)) << name(kind);
  }
}

TEST(Pipeline, MeasuresTheBubbleThatComputationsAlwaysHave) {
  // The first of two stages waits for the last while that computes its first microbatch.
  const Schedule schedule = make_schedule(ScheduleKind::one_forward_one_backward, 2, 2);
  run_threads(2, [&](const Communicator& world) {
    Pipeline pipeline(world, schedule, {});
    EXPECT_EQ(pipeline.times().measured, 0);
    ToyStage stage(schedule, world.rank());
    stage.before = [](const Action&) { std::this_thread::sleep_for(std::chrono::milliseconds(20)); };
    pipeline.run(stage, ToyStage::message(), DType::f64);
    const Pipeline::Times times = pipeline.times();
    if (world.rank() != 0) {
      EXPECT_EQ(times.measured, 0);
      return;
    }
    EXPECT_GE(times.ideal, 0.08);     // four computations of a stage
    EXPECT_GE(times.measured, 0.12);  // and two of the other that it waits for
    EXPECT_GT(times.simulated, times.ideal);
    EXPECT_LE(times.simulated, times.measured * 1.01);
    EXPECT_DOUBLE_EQ(times.bubble(), times.measured / times.ideal - 1);
  });
}

// Whatever stage throws, and wherever: all ranks end, and say why. Receives have begun ahead by then.
TEST(Pipeline, AStageThatThrowsEndsTheJob) {
  const Schedule schedule = make_schedule(ScheduleKind::zb_v, 2, 4, 2);
  for (int thrower = 0; thrower < 2; ++thrower) {
    for (int action = 0; action < 24; action += 5) {
      const std::string sentence = sentence_of([&] {
        run(schedule, true, 1, [&](ToyStage& stage, const Communicator& world) {
          if (world.rank() != thrower) return;
          stage.before = [left = action](const Action&) mutable {
            if (left-- == 0) throw std::runtime_error("no memory is left");
          };
        });
      });
      EXPECT_THAT(sentence, testing::HasSubstr("no memory is left")) << "rank " << thrower << " at action " << action;
    }
  }
}

// A stage that is faster than the next keeps few results. (A small message may be done before it has been received.)
TEST(Pipeline, ResultsDoNotPileUp) {
  constexpr int microbatches = 40;
  static const Shape message{256, 256};
  static std::atomic<int> first, second, most;
  first = second = most = 0;
  class Stage final : public PipelineStage {
   public:
    explicit Stage(int rank) : rank_(rank) {}
    Tensor compute(const Action&, Tensor) override {
      if (rank_ == 1) {
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
        ++second;
      } else {
        most = std::max<int>(most, ++first - second);
      }
      return Tensor::zeros(message, DType::f64);
    }

   private:
    int rank_;
  };
  run_threads(2, [&](const Communicator& world) {
    Pipeline pipeline(world, make_schedule(ScheduleKind::gpipe, 2, microbatches), {});
    Stage stage(world.rank());
    pipeline.run_forward(stage, microbatches, message, DType::f64);
  });
  EXPECT_LE(most, 8);  // the receiver's window, and what is under way
  EXPECT_EQ(second, microbatches);
}

TEST(Pipeline, SaysWhatCannotBe) {
  run_threads(2, [&](const Communicator& world) {
    expect_refusal([&] { Pipeline(world, make_schedule(ScheduleKind::gpipe, 3, 3), {}); },
                   "A schedule of 3 stages cannot run on 2 ranks.");
    Schedule without_weights = make_schedule(ScheduleKind::zb_h1, 2, 2);
    std::erase_if(without_weights.lists[1], [](const ActionGroup& group) {
      return group.front() == Action{ActionKind::backward_weight, 1, 0};
    });
    expect_refusal([&] { Pipeline(world, without_weights, {}); }, "Stage 1 never computes backward_weight 1 0.");
  });
  run_threads(1, [&](const Communicator& world) {
    class WrongShape final : public PipelineStage {
      Tensor compute(const Action&, Tensor) override { return Tensor::zeros({2}, DType::f32); }
    } stage;
    Pipeline pipeline(world, make_schedule(ScheduleKind::interleaved, 1, 1, 2), {});
    expect_refusal(
        [&] {
          pipeline.run(stage, {3, 5}, DType::f64);
        },
        "Stage 0 has a result of [2] f32 for forward 0 0, but a pipeline's messages are [3, 5] f64.");
  });
}

}  // namespace
}  // namespace stretto
