#pragma once
#include <algorithm>

#include "by_hand.hpp"

// Training without a flush, and its oracle: a loop over a synchronous pipeline in the same layout, whose stages are given
// the versions of the papers before each backward, and the latest before each update.
namespace parity {

inline constexpr double window_lr = 3e-3;

struct WindowCell {
  Layout layout;
  const char* schedule;
  int microbatches;
  ZeroStage zero = ZeroStage::optimizer;
  OptimizerOptions optimizer = AdamW::Options();
  Recompute recompute = Recompute::none;
  bool overlap = true;
};

inline std::string text_of(const WindowCell& cell) {
  return fmt::format("dp {} tp {} pp {} cp {}, {} with {} microbatches, zero {}, {}, recompute {}, overlap {}",
                     cell.layout.data, cell.layout.tensor, cell.layout.pipeline, cell.layout.ring, cell.schedule,
                     cell.microbatches, static_cast<int>(cell.zero), to_string(kind_of(cell.optimizer)),
                     static_cast<int>(cell.recompute), cell.overlap);
}

inline TrainingOptions options_of(const WindowCell& cell) {
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

inline WeightsOfRank weights_of(Trainer& trainer) {
  trainer.sharded().wait_for_values();
  WeightsOfRank result;
  for (const ShardedParameters::Range& range : trainer.sharded().ranges()) result.push_back(range.value.clone());
  return result;
}

inline void set_weights(Trainer& trainer, const WeightsOfRank& weights) {
  trainer.sharded().wait_for_values();
  for (std::size_t i = 0; i < weights.size(); ++i) trainer.sharded().ranges()[i].value.copy_from(weights[i]);
  trainer.sharded().share_values();
}

// Which update the weights lack at a stage, in a pipeline of p stages.
using MissingUpdates = std::function<int(int stage, int stages)>;

inline MissingUpdates missing_of(const std::string& schedule) {
  if (schedule.starts_with("2bw")) return [](int, int stages) { return stages > 1 ? 1 : 0; };
  if (schedule == "pipedream" || schedule == "pipemare") return [](int stage, int stages) { return stages - 1 - stage; };
  return [](int, int stages) { return stages - 1; };
}

// The norm of all stages' gradients, as stages tell it each other.
inline double norm_of_stages(const Trainer& trainer, double of_stage) {
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

inline Pieces by_loop(Trainer& trainer, const TextOfStep& text, int updates, const MissingUpdates& missing,
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
inline bool updates_each(const std::string& schedule) { return !schedule.starts_with("2bw"); }

inline TrainingOptions flushing(TrainingOptions options, bool each_microbatch) {
  options.stages.schedule_name = "1f1b";
  options.clips_by_step_before = false;
  if (each_microbatch) options.global_batch = options.mesh[Axis::data];
  return options;
}

// Microbatch t of all windows, of which a data-parallel rank has the slots from rank * microbatches on.
inline FillSlot microbatch_of(const WindowCell& cell, const TrainingOptions& of_windows, std::int64_t t) {
  const std::int64_t m = cell.microbatches;
  return [whole = text_of_step(of_windows, t / m), m, i = t % m](
             std::int64_t rank, std::int32_t* tokens, std::int32_t* targets) { whole(rank * m + i, tokens, targets); };
}

struct WindowsAndLoop {
  Pieces windows, loop;
};

inline constexpr int trained_windows = 4;

inline Pieces run_windows(const Mesh& mesh, const TrainingOptions& options, int updates_a_window) {
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

inline std::vector<WindowsAndLoop> train_windows(const WindowCell& cell, const MissingUpdates& missing,
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

inline std::string divergence(const std::vector<WindowsAndLoop>& found) {
  std::string text;
  for (const WindowsAndLoop& each : found) {
    Comparer bits(equal_bits);
    if (text.empty()) text = bits.pieces(each.loop, each.windows, "after the windows, parameter");
  }
  return text;
}

}  // namespace parity
