// Training of several ranks over stand-in GPUs with the host's kernels: the host's bits, with and without overlap, whatever
// the timing of the streams.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "apps/train/run/sampling.hpp"
#include "parity/parity.hpp"
#include "stand_in/job_on_gpus.hpp"
#include "support/variables.hpp"

namespace parity {
namespace {

struct Cell {
  Layout layout;
  DType dtype;
  bool one_gpu_each;  // messages go over NCCL; otherwise ranks share a GPU and messages are copies
};

TrainingOptions options_of(const Cell& cell) {
  TrainingOptions options = tiny(cell.layout, cell.dtype);
  options.model.sequence = 16;
  return options;
}

// A rank's trace of three steps, then its evaluation and a sampled text.
struct Trained {
  Trace trace;
  double evaluated = 0;
  std::string text;
};

Trained train_here(const Communicator& world, const Cell& cell, const TrainingOptions& options) {
  Trained result;
  Trainer trainer(Mesh(world, cell.layout.mesh()), options);
  result.trace = advance(trainer, 0, trained_steps);
  result.evaluated = trainer.evaluate(text_of_step(options, 9), 3);
  result.text = apps::sample(trainer, "\1\2\3", {.length = 2, .temperature = 0.5});
  return result;
}

using Job = std::function<void(int, const RankBody&)>;

std::vector<Trained> train_in(const Job& job, const Cell& cell, const TrainingOptions& options) {
  std::vector<Trained> result(static_cast<std::size_t>(cell.layout.ranks()));
  job(cell.layout.ranks(),
      [&](const Communicator& world) { result[static_cast<std::size_t>(world.rank())] = train_here(world, cell, options); });
  return result;
}

Job on_gpus(bool one_each, const HostGpuOptions& how = {.longest_delay_us = 20}) {
  return [one_each, how](int size, const RankBody& body) {
    JobOnGpus(one_each ? Route::nccl : Route::copies, how).run(size, body);
  };
}

std::string divergence(const std::vector<Trained>& expected, const std::vector<Trained>& actual) {
  for (std::size_t rank = 0; rank < expected.size(); ++rank) {
    std::string text = compare(expected[rank].trace, actual[rank].trace, equal_bits).all();
    text += Comparer(equal_bits).numbers({expected[rank].evaluated}, {actual[rank].evaluated}, "evaluation");
    if (expected[rank].text != actual[rank].text) text += "another text";
    if (!text.empty()) return fmt::format("rank {}: {}", rank, text);
  }
  return {};
}

class TrainingOnGpus : public testing::TestWithParam<Cell> {};

// Groups of two, whose sums have only one order, and one group of four whose plan is the same on both devices.
std::vector<Cell> cells() {
  std::vector<Cell> result;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const Layout layout : {Layout{2, 1}, {1, 2}, {2, 2}}) {
      for (const bool one_gpu_each : {false, true}) result.push_back({layout, dtype, one_gpu_each});
    }
    result.push_back({{4, 1}, dtype, false});
  }
  return result;
}

INSTANTIATE_TEST_SUITE_P(Layouts, TrainingOnGpus, testing::ValuesIn(cells()), [](const auto& cell) {
  return fmt::format("{}x{}_{}_{}", cell.param.layout.data, cell.param.layout.tensor, stretto::name(cell.param.dtype),
                     cell.param.one_gpu_each ? "nccl" : "copies");
});

TEST_P(TrainingOnGpus, HasTheBitsOfTheHostWithOverlapAndWithout) {
  const Cell& cell = GetParam();
  TrainingOptions options = options_of(cell);
  const std::vector<Trained> expected = train_in(run_threads, cell, options);
  for (const bool overlap : {true, false}) {
    options.sharding.overlap = overlap;
    const std::vector<Trained> actual = train_in(on_gpus(cell.one_gpu_each), cell, options);
    EXPECT_EQ(divergence(expected, actual), "") << "overlap " << overlap;
    const auto on_streams = std::ranges::count_if(actual.front().trace.records, [](const Record& record) {
      return record.stream == "dp" || (record.stream == "tp" && record.tag == "column-parallel backward");
    });
    EXPECT_EQ(on_streams > 0, overlap);
  }
}

// The library's own choice of algorithms may sum in another order than on the host.
TEST(TrainingOfFourRanks, IsCloseToTheHost) {
  const Variable chosen_by_the_library("STRETTO_ALGO", std::nullopt);
  for (const Layout layout : {Layout{1, 4}, Layout{4, 1}}) {
    const Cell cell{layout, DType::f32, true};
    const std::vector<Trained> expected = train_in(run_threads, cell, options_of(cell));
    const std::vector<Trained> actual = train_in(on_gpus(true), cell, options_of(cell));
    const Trace& trace = actual.front().trace;
    EXPECT_EQ(Comparer(1e-5).numbers(expected.front().trace.losses, trace.losses, "loss"), "");
    EXPECT_EQ(Comparer(1e-4).numbers(expected.front().trace.norms, trace.norms, "gradient norm"), "");
  }
}

TEST(ZeroOnGpus, GivesTheHostsBitsAtEveryStage) {
  const Cell cell{{2, 1}, DType::f32, false};
  TrainingOptions options = options_of(cell);
  options.sharding.unit_bytes = std::size_t{8} << 10;
  for (const ZeroStage stage : {ZeroStage::none, ZeroStage::optimizer, ZeroStage::gradients, ZeroStage::values}) {
    options.sharding.zero = stage;
    const auto losses = [&](const Job& job) {
      std::vector<double> result;
      job(2, [&](const Communicator& world) {
        Trainer trainer(Mesh(world, {{Axis::data, 2}}), options);
        for (std::int64_t step = 0; step < 4; ++step) {
          const double loss = trainer.step(text_of_step(options, step), 3e-3).loss;
          if (world.rank() == 0) result.push_back(loss);
        }
        for (std::size_t unit = 0; unit < trainer.sharded().unit_count(); ++unit) {
          const UnitTraffic::Times times = trainer.sharded().traffic().times(unit);
          EXPECT_GT(times.ready, 0);
          EXPECT_GT(times.sum, 0);
        }
      });
      return result;
    };
    EXPECT_EQ(losses(on_gpus(false)), losses(run_threads)) << static_cast<int>(stage);
  }
}

// A stage's messages of one group go together, where the schedule has them.
struct PipelineCell {
  Cell cell;
  ScheduleKind schedule;
  ZeroStage zero = ZeroStage::optimizer;
};

TrainingOptions options_of(const PipelineCell& cell) {
  TrainingOptions options = options_of(cell.cell);
  const bool two_chunks = cell.schedule == ScheduleKind::interleaved || cell.schedule == ScheduleKind::zb_v;
  options.model.layers = cell.cell.layout.pipeline * (two_chunks ? 2 : 1) + 1;
  options.global_batch = 4L * cell.cell.layout.data;
  options.stages.schedule_name = name(cell.schedule);
  options.stages.virtual_stages = two_chunks ? 2 : 1;
  options.sharding.zero = cell.zero;
  return options;
}

class PipelinesOnGpus : public testing::TestWithParam<PipelineCell> {};

std::vector<PipelineCell> pipeline_cells() {
  std::vector<PipelineCell> result;
  for (const ScheduleKind schedule : all_schedule_kinds()) {
    for (const bool one_gpu_each : {false, true}) result.push_back({{{1, 1, 2}, DType::f32, one_gpu_each}, schedule});
  }
  result.push_back({{{2, 1, 2}, DType::f32, false}, ScheduleKind::interleaved, ZeroStage::values});
  result.push_back({{{2, 1, 2}, DType::bf16, true}, ScheduleKind::zb_h1, ZeroStage::gradients});
  result.push_back({{{1, 2, 2}, DType::f32, true}, ScheduleKind::zb_v});
  result.push_back({{{1, 1, 4}, DType::bf16, false}, ScheduleKind::one_forward_one_backward, ZeroStage::none});
  return result;
}

std::string name_of(const testing::TestParamInfo<PipelineCell>& each) {
  const Cell& cell = each.param.cell;
  std::string text =
      fmt::format("{}x{}x{}_{}_{}_{}", cell.layout.data, cell.layout.tensor, cell.layout.pipeline,
                  stretto::name(each.param.schedule), stretto::name(cell.dtype), cell.one_gpu_each ? "nccl" : "copies");
  std::ranges::replace(text, '-', '_');
  return text;
}

INSTANTIATE_TEST_SUITE_P(Schedules, PipelinesOnGpus, testing::ValuesIn(pipeline_cells()), name_of);

TEST_P(PipelinesOnGpus, HaveTheBitsOfTheHostWithOverlapAndWithout) {
  const Cell& cell = GetParam().cell;
  TrainingOptions options = options_of(GetParam());
  const std::vector<Trained> expected = train_in(run_threads, cell, options);
  for (const bool overlap : {true, false}) {
    options.sharding.overlap = overlap;
    const std::vector<Trained> actual = train_in(on_gpus(cell.one_gpu_each), cell, options);
    EXPECT_EQ(divergence(expected, actual), "") << "overlap " << overlap;
    const auto on_streams = std::ranges::count_if(actual.front().trace.records, [](const Record& record) {
      return record.tag == "activations" && record.stream == "pp messages";
    });
    EXPECT_EQ(on_streams > 0, overlap);
  }
}

// The control: streams that ignore waits give wrong values.
TEST(PipelinesOnGpusControl, NeedTheWaitsOfStreams) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the control is the race that it would find";
#endif
  const PipelineCell cell{{{1, 1, 2}, DType::f32, false}, ScheduleKind::one_forward_one_backward};
  const TrainingOptions options = options_of(cell);
  const std::vector<Trained> expected = train_in(run_threads, cell.cell, options);
  const std::vector<Trained> actual =
      train_in(on_gpus(false, {.longest_delay_us = 100, .ignores_waits = true}), cell.cell, options);
  EXPECT_NE(divergence(expected, actual), "");
}

// The control: streams that ignore waits give wrong values.
TEST(TrainingOnGpusControl, NeedsTheWaitsOfStreams) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the control is the race that it would find";
#endif
  const Cell cell{{2, 1}, DType::f32, false};
  const TrainingOptions options = options_of(cell);
  const std::vector<Trained> expected = train_in(run_threads, cell, options);
  const std::vector<Trained> actual =
      train_in(on_gpus(false, {.longest_delay_us = 100, .ignores_waits = true}), cell, options);
  EXPECT_NE(divergence(expected, actual), "");
}

// Replicas of two ranks each, which exchange fragments while the next step computes.
TEST(TrainingOnGpus, ReplicasThatAgreeSeldomHaveTheHostsBits) {
  const Cell cell{{.data = 2}, DType::bf16, true};
  const auto states = [&](const Job& job, bool agree) {
    std::vector<Pieces> values(4);
    job(4, [&](const Communicator& world) {
      TrainingOptions options = options_of(cell);
      options.global_batch = 8;
      options.diloco = {.replicas = 2, .sync_every = agree ? 4 : 40, .fragments = 2, .fragment_sync_delay = 1};
      const ReplicaGroups groups = split_into_replicas(world, 2);
      Trainer trainer(Mesh(groups.replica, cell.layout.mesh()), options, groups.peers);
      values[static_cast<std::size_t>(world.rank())] = advance(trainer, 0, 6).parameters;
    });
    return values;
  };
  const auto same = [](const std::vector<Pieces>& a, const std::vector<Pieces>& b) {
    std::string text;
    for (std::size_t rank = 0; rank < a.size(); ++rank) text += Comparer(equal_bits).pieces(a[rank], b[rank], "");
    return text;
  };
  const std::vector<Pieces> expected = states(run_threads, true);
  for (const bool one_each : {true, false}) EXPECT_EQ(same(expected, states(on_gpus(one_each), true)), "") << one_each;
  EXPECT_NE(same(expected, states(on_gpus(true), false)), "");
}

}  // namespace
}  // namespace parity
