#pragma once
#include <cmath>
#include <cstdint>

#include "apps/common/fail.hpp"
#include "apps/train/options/command_line.hpp"
#include "stretto/layers/loss_scale.hpp"

// Decides by the command line which steps are followed by a report, a checkpoint and so on. Steps are counted from 0.
namespace apps {

inline bool due(std::int64_t interval, std::int64_t step) { return interval > 0 && (step + 1) % interval == 0; }

// Whether the pipeline is emptied behind a step, wherever training ends and whatever is saved.
inline bool empties(const CommandLine& line, std::int64_t step) {
  constexpr std::int64_t most = 100;
  return (step + 1) % most == 0 || due(line.check_replicas, step) || due(line.eval_interval, step) ||
         due(line.sample_interval, step);
}

// Whether a checkpoint of the step has microbatches under way.
inline bool saves_in_flight(const CommandLine& line, std::int64_t step) {
  const bool saves = due(line.save_interval, step) || (!line.save.empty() && step + 1 == line.steps);
  return line.trainer.saves_in_flight && saves && !empties(line, step);
}

// Steps that follow each other with nothing between them: 1 if ranks meet in each step. Without a flush, what comes between
// steps finds the pipeline empty, and with servers all workers behind one step; a request to stop waits for that.
inline std::int64_t steps_in_turn(const CommandLine& line, std::int64_t first, bool meets_each_step) {
  if (meets_each_step) return 1;
  std::int64_t step = first;
  while (step + 1 < line.steps && !empties(line, step) && (line.trainer.saves_in_flight || !due(line.save_interval, step))) {
    ++step;
  }
  return step + 1 - first;
}

// Throws Error(invalid_argument) if training cannot go on behind the step.
inline void check_step(const CommandLine& line, const stretto::StepResult& result, const stretto::LossScale& scale,
                       std::int64_t step) {
  if (!line.scales_loss() && (!std::isfinite(result.loss) || !std::isfinite(result.gradient_norm))) {
    fail(stretto::ErrorCode::invalid_argument, "Step {} has loss {} and gradient norm {}; lower --lr {}.", step + 1,
         result.loss, result.gradient_norm, line.lr);
  }
  if (scale.hopeless()) {
    fail(stretto::ErrorCode::invalid_argument,
         "Steps {} to {} all had infinite gradients or NaN in them, the last at a loss scale of {}; lower --lr {}{}, or "
         "train with --dtype bf16.",
         step + 2 - stretto::LossScale::most_overflows, step + 1, result.loss_scale, line.lr,
         line.trainer.loss_scale.fixed ? " or --loss-scale" : "");
  }
}

}  // namespace apps
