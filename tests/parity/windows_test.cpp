// Training without a flush: weights have the bits of a loop over a synchronous pipeline in the same layout, whose stages are
// given the versions of the papers before each backward, and the latest before each update.
#include <gmock/gmock.h>

#include <algorithm>
#include <future>
#include <random>
#include <thread>

#include "by_hand.hpp"
#include "stretto/planning/stage_plan.hpp"
#include "support/error.hpp"

namespace parity {
namespace {

constexpr double window_lr = 3e-3;

struct WindowCell {
  Layout layout;
  const char* schedule;
  int microbatches;
  ZeroStage zero = ZeroStage::optimizer;
  OptimizerOptions optimizer = AdamW::Options();
  Recompute recompute = Recompute::none;
  bool overlap = true;
};

std::string text_of(const WindowCell& cell) {
  return fmt::format("dp {} tp {} pp {} cp {}, {} with {} microbatches, zero {}, {}, recompute {}, overlap {}",
                     cell.layout.data, cell.layout.tensor, cell.layout.pipeline, cell.layout.ring, cell.schedule,
                     cell.microbatches, static_cast<int>(cell.zero), to_string(kind_of(cell.optimizer)),
                     static_cast<int>(cell.recompute), cell.overlap);
}

TrainingOptions options_of(const WindowCell& cell) {
  TrainingOptions options = tiny(cell.layout);
  options.model.layers = cell.layout.pipeline + 1;
  options.model.tied = false;
  options.stages.schedule_name = cell.schedule;
  options.global_batch = std::int64_t{cell.microbatches} * cell.layout.data;
  options.sharding.zero = cell.zero;
  options.sharding.overlap = cell.overlap;
  options.optimizer = cell.optimizer;
  options.recompute.level = cell.recompute;
  options.clip_norm = 0;
  return options;
}

using WeightsOfRank = std::vector<Tensor>;  // by range of this rank

WeightsOfRank weights_of(Trainer& trainer) {
  trainer.sharded().wait_for_values();
  WeightsOfRank result;
  for (const ShardedParameters::Range& range : trainer.sharded().ranges()) result.push_back(range.value.clone());
  return result;
}

void set_weights(Trainer& trainer, const WeightsOfRank& weights) {
  trainer.sharded().wait_for_values();
  for (std::size_t i = 0; i < weights.size(); ++i) trainer.sharded().ranges()[i].value.copy_from(weights[i]);
  trainer.sharded().share_values();
}

// Which update the weights lack at a stage, in a pipeline of p stages.
using MissingUpdates = std::function<int(int stage, int stages)>;

MissingUpdates missing_of(const std::string& schedule) {
  if (schedule == "2bw") return [](int, int stages) { return stages > 1 ? 1 : 0; };
  if (schedule == "pipedream" || schedule == "pipemare") return [](int stage, int stages) { return stages - 1 - stage; };
  return [](int, int stages) { return stages - 1; };
}

// The norm of all stages' gradients, as stages tell it each other.
double norm_of_stages(const Trainer& trainer, double of_stage) {
  const bool speaks = trainer.mesh().over(token_axes | Axis::tensor).rank() == 0;
  double squares = speaks ? of_stage * of_stage : 0;
  trainer.mesh().world().all_reduce(&squares, &squares, 1, DType::f64, ReduceOp::sum, Stream::inline_()).wait();
  return std::sqrt(squares);
}

// clips: by the norm of the step before; by that of the step's own, a fault, if `own`.
struct Clipping {
  double most = 0;
  bool own = false;
};

Pieces by_loop(Trainer& trainer, const TextOfStep& text, int updates, const MissingUpdates& missing,
               const Clipping& clipping = {}) {
  std::optional<double> before;
  const int lacks = missing(trainer.mesh().rank(Axis::pipeline), trainer.mesh().size(Axis::pipeline));
  std::vector<WeightsOfRank> versions = {weights_of(trainer)};
  for (int t = 0; t < updates; ++t) {
    set_weights(trainer, versions[static_cast<std::size_t>(std::max(0, t - lacks))]);
    trainer.compute_gradients(text(trainer.options(), t));
    const double of_stage = gradient_norm(trainer.sharded(), trainer.mesh().over(token_axes | Axis::tensor));
    const double of_all = norm_of_stages(trainer, of_stage);
    const double norm = clipping.own ? of_all : before.value_or(of_stage);
    before = of_all;
    set_weights(trainer, versions.back());
    trainer.optimizer().step(window_lr, clipping.most > 0 && norm > clipping.most ? clipping.most / norm : 1);
    versions.push_back(weights_of(trainer));
  }
  return pieces_of(trainer, trainer.sharded().whole_values());
}

// PipeDream updates after each microbatch: to the loop, it is a step of its own.
bool updates_each(const std::string& schedule) { return schedule != "2bw"; }

TrainingOptions flushing(TrainingOptions options, bool each_microbatch) {
  options.stages.schedule_name = "1f1b";
  options.clips_by_step_before = false;
  if (each_microbatch) options.global_batch = options.mesh[Axis::data];
  return options;
}

// Microbatch t of all windows, of which a data-parallel rank has the slots from rank * microbatches on.
FillSlot microbatch_of(const WindowCell& cell, const TrainingOptions& of_windows, std::int64_t t) {
  const std::int64_t m = cell.microbatches;
  return [whole = text_of_step(of_windows, t / m), m, i = t % m](
             std::int64_t rank, std::int32_t* tokens, std::int32_t* targets) { whole(rank * m + i, tokens, targets); };
}

struct WindowsAndLoop {
  Pieces windows, loop;
};

constexpr int trained_windows = 4;

Pieces run_windows(const Mesh& mesh, const TrainingOptions& options, int updates_a_window) {
  Trainer trainer(mesh, options);
  std::vector<std::int64_t> reported;
  trainer.run({.count = trained_windows,
               .fill_of = [&](std::int64_t step) { return text_of_step(options, step); },
               .lr_of = [](std::int64_t) { return window_lr; },
               .done =
                   [&](std::int64_t step, const StepResult& result) {
                     EXPECT_TRUE(std::isfinite(result.loss) && result.loss > 3 && result.updated);
                     reported.push_back(step);
                   }});
  EXPECT_EQ(reported, (std::vector<std::int64_t>{0, 1, 2, 3}));
  EXPECT_EQ(trainer.optimizer().steps(), trained_windows * updates_a_window);
  return pieces_of(trainer, trainer.sharded().whole_values());
}

std::vector<WindowsAndLoop> train_windows(const WindowCell& cell, const MissingUpdates& missing,
                                          const Clipping& clipping = {}) {
  std::vector<WindowsAndLoop> found(static_cast<std::size_t>(cell.layout.ranks()));
  TrainingOptions options = options_of(cell);
  options.mesh = cell.layout.mesh();
  options.clip_norm = clipping.most;
  options.clips_by_step_before = clipping.most > 0;
  const bool each = updates_each(cell.schedule);
  run_threads(cell.layout.ranks(), [&](const Communicator& world) {
    const Mesh mesh(world, cell.layout.mesh());
    WindowsAndLoop& mine = found[static_cast<std::size_t>(world.rank())];
    mine.windows = run_windows(mesh, options, each ? cell.microbatches : 1);
    Trainer trainer(mesh, flushing(options, each));
    const TextOfStep text = [&](const TrainingOptions& its, std::int64_t t) {
      return each ? microbatch_of(cell, options, t) : text_of_step(its, t);
    };
    mine.loop = by_loop(trainer, text, trained_windows * (each ? cell.microbatches : 1), missing, clipping);
  });
  return found;
}

std::string divergence(const std::vector<WindowsAndLoop>& found) {
  std::string text;
  for (const WindowsAndLoop& each : found) {
    Comparer bits(equal_bits);
    if (text.empty()) text = bits.pieces(each.loop, each.windows, "after the windows, parameter");
  }
  return text;
}

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
    {{2, 1, 2}, "2bw", 2, ZeroStage::optimizer, Muon::Options()},
    {{1, 1, 4}, "pipedream", 5, ZeroStage::none, AdamW::Options(), Recompute::full},
    {{2, 1, 2}, "2bw", 3, ZeroStage::none},
    {{2, 1, 2}, "pipedream", 2, ZeroStage::optimizer, AdamW::Options(), Recompute::full},
    {{2, 2, 2}, "2bw", 2, ZeroStage::optimizer},
    {{2, 2, 2}, "2bw", 3, ZeroStage::none, SGD::Options{.momentum = 0.9}, Recompute::none, false},
    {{2, 2, 2}, "pipedream-vertical", 2, ZeroStage::none},
    {{1, 2, 2, 2}, "2bw", 2, ZeroStage::optimizer, AdamW::Options(), Recompute::full},
};

class TrainingWindows : public testing::TestWithParam<std::size_t> {};

TEST_P(TrainingWindows, HaveTheBitsOfTheLoop) {
  const WindowCell& cell = window_cells[GetParam()];
  EXPECT_EQ(divergence(train_windows(cell, missing_of(cell.schedule))), "") << text_of(cell);
}

INSTANTIATE_TEST_SUITE_P(Cells, TrainingWindows, testing::Range(std::size_t{0}, window_cells.size()));

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

// ---- PipeMare

// A loop over a pipeline that flushes behind each microbatch, whose weights are overwritten before each forward by the
// version that it lacks updates to, before each backward by the corrected ones, and before each update by the latest.
class PipeMareLoop {
 public:
  PipeMareLoop(int stage, int stages, double decay) : lacks_(stages - 1 - stage) {
    if (lacks_ > 0) gamma_ = PipeMareOptions{.decay = decay}.keeping(static_cast<double>(lacks_));
  }
  bool corrects = true;

  Fault as_fault(const PipeMareOptions& rates) {
    return {.in_records = [this](Parameters& parameters) { parameters_ = &parameters; },
            .in_sums = [this](ShardedParameters&) { give(versions_.back()); },
            .in_stage =
                [this](PipelineStage& stage, const Action& action, Tensor input) {
                  if (action.kind == ActionKind::forward) {
                    begin_update();
                    give(versions_[std::max<std::size_t>(versions_.size() - 1, lacks_) - lacks_]);
                  } else {
                    give(corrects ? corrected_ : versions_.back());
                  }
                  return stage.compute(action, std::move(input));
                },
            .rate = [this, rates](std::int64_t step) { return window_lr * rates.rate_factor(lacks_, step / microbatches); }};
  }
  static constexpr int microbatches = 4;

 private:
  using Values = std::vector<std::vector<double>>;  // by parameter
  void begin_update() {
    Values now;
    for (const auto& parameter : parameters_->all()) {
      std::vector<double>& its = now.emplace_back();
      for (std::int64_t i = 0; parameter->is_here && i < parameter->value.size(); ++i) its.push_back(parameter->value.at(i));
    }
    if (versions_.empty()) delta_ = now;
    corrected_ = now;
    for (std::size_t k = 0; k < now.size(); ++k) {
      for (std::size_t i = 0; i < now[k].size(); ++i) {
        double& delta = delta_[k][i];
        delta = versions_.empty() ? 0 : gamma_ * delta + (1 - gamma_) * (now[k][i] - versions_.back()[k][i]);
        if (lacks_ > 0) corrected_[k][i] = now[k][i] + -static_cast<double>(lacks_) * delta;
      }
    }
    versions_.push_back(now);
  }
  void give(const Values& values) {
    for (const auto& parameter : parameters_->all()) {
      const std::vector<double>& its = values[parameter->index];
      for (std::size_t i = 0; i < its.size(); ++i) parameter->value.set(static_cast<std::int64_t>(i), its[i]);
    }
  }

  std::size_t lacks_;
  double gamma_ = 0;
  Parameters* parameters_ = nullptr;
  std::vector<Values> versions_;
  Values delta_, corrected_;
};

std::vector<WindowsAndLoop> train_pipemare(int stages, Recompute recompute, const PipeMareOptions& pipemare,
                                           const std::function<void(PipeMareLoop&, PipeMareOptions&)>& change = {}) {
  const WindowCell cell{{1, 1, stages},  "pipemare",       PipeMareLoop::microbatches,
                        ZeroStage::none, AdamW::Options(), recompute};
  TrainingOptions options = options_of(cell);
  options.mesh = cell.layout.mesh();
  options.pipemare = pipemare;
  std::vector<WindowsAndLoop> found(static_cast<std::size_t>(stages));
  run_threads(stages, [&](const Communicator& world) {
    WindowsAndLoop& mine = found[static_cast<std::size_t>(world.rank())];
    mine.windows = run_windows(Mesh(world, cell.layout.mesh()), options, cell.microbatches);
    PipeMareLoop loop(world.rank(), stages, pipemare.decay);
    PipeMareOptions rates = pipemare;
    if (change) change(loop, rates);
    mine.loop =
        train_by_hand(world, cell.layout, flushing(options, true), loop.as_fault(rates), trained_windows * cell.microbatches)
            .parameters;
  });
  return found;
}

TEST(PipeMareTraining, HasTheBitsOfTheLoop) {
  for (const int stages : {1, 2, 3, 4}) {
    for (const Recompute recompute : {Recompute::none, Recompute::full}) {
      const PipeMareOptions options{.annealing_steps = stages > 2 ? 3 : 0, .decay = stages > 3 ? 0.5 : 0.135};
      EXPECT_EQ(divergence(train_pipemare(stages, recompute, options)), "") << stages << " stages";
    }
  }
}

TEST(PipeMareTraining, ControlsWithoutCorrectionOrLowerRatesDiffer) {
  const PipeMareOptions options{.annealing_steps = 3};
  const auto changed = [&](const std::function<void(PipeMareLoop&, PipeMareOptions&)>& change) {
    return divergence(train_pipemare(3, Recompute::none, options, change));
  };
  EXPECT_NE(changed([](PipeMareLoop& loop, PipeMareOptions&) { loop.corrects = false; }), "");
  EXPECT_NE(changed([](PipeMareLoop&, PipeMareOptions& rates) { rates.annealing_steps = 0; }), "");
}

// In one layout: the division of states, and groups that are summed over otherwise, change no bit.
TEST(PipeMareTraining, HasTheSameBitsAtBothZeroStages) {
  std::vector<Pieces> found[2];
  for (const ZeroStage zero : {ZeroStage::none, ZeroStage::optimizer}) {
    const WindowCell cell{{2, 2, 2}, "pipemare", 2, zero};
    TrainingOptions options = options_of(cell);
    options.pipemare.annealing_steps = 2;
    std::vector<Pieces>& its = found[zero == ZeroStage::none ? 0 : 1];
    its.resize(8);
    run_threads(8, [&](const Communicator& world) {
      its[static_cast<std::size_t>(world.rank())] = run_windows(Mesh(world, cell.layout.mesh()), options, cell.microbatches);
    });
  }
  for (std::size_t rank = 0; rank < 8; ++rank) {
    Comparer bits(equal_bits);
    EXPECT_EQ(bits.pieces(found[0][rank], found[1][rank], "parameter"), "");
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
          std::vector<std::int64_t> steps;
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
                             if (meets) world.barrier(Stream::inline_()).wait();
                           },
                       .done = {}});
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
  for (const char* const schedule : {"2bw", "pipedream", "pipedream-vertical", "pipemare"}) {
    const WindowCell cell{{2, 1, 3}, schedule, 3};
    TrainingOptions options = options_of(cell);
    options.mesh = cell.layout.mesh();
    const TrainingOptions flushes = flushing(options, false);
    std::int64_t planned = 0, planned_flushing = 0;
    for (int stage = 0; stage < 3; ++stage) {
      const auto values_of = [&](const TrainingOptions& its) { return plan_stage(its, its.check(), stage).memory.values; };
      const std::map<std::string, int> by_kind{
          {"2bw", 2}, {"pipedream", 3 - stage}, {"pipedream-vertical", 3}, {"pipemare", stage < 2 ? 2 : 1}};
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
  for (const char* const schedule : {"2bw", "pipedream", "pipedream-vertical", "pipemare"}) {
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
  EXPECT_THAT(refusal([](TrainingOptions& its) { its.model.tied = true; }), testing::HasSubstr("untie it"));
  EXPECT_THAT(refusal([](TrainingOptions& its) { its.sharding.zero = ZeroStage::gradients; }),
              testing::HasSubstr("ZeRO stage 2"));
  EXPECT_THAT(refusal([](TrainingOptions& its) { its.sharding.dtype = DType::f16; }), testing::HasSubstr("bf16 or f32"));
  for (const char* const schedule : {"pipedream", "1f1b"}) {
    EXPECT_THAT(refusal([&](TrainingOptions& its) {
                  its.stages.schedule_name = schedule;
                  its.clip_norm = 1;
                  its.clips_by_step_before = true;
                }),
                testing::HasSubstr("by the norm of the step before"));
  }
  for (const char* const schedule : {"pipemare", "1f1b"}) {
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
