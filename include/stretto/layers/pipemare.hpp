#pragma once
#include <cstdint>
#include <vector>

#include "stretto/layers/optimizer.hpp"

namespace stretto {

// How a pipeline trains whose backward reads later weights than its forward (PipeMare; Yang et al. 2021). A stage's delays
// are those of its schedule (mean_delay()), in updates.
struct STRETTO_API PipeMareOptions {
  // Technique 1: steps after which all stages have the learning rate that they are given. Until then a stage whose forward
  // lacks tau updates has that rate over max(1, tau)^q, where q falls from 1 to 0. 0: all have it from the beginning.
  std::int64_t annealing_steps = 0;
  double decay = 0.135;  // technique 2: D, of the paper's e^-2; above 0, below 1

  void check() const;  // throws Error(invalid_argument), in one sentence, for numbers that cannot be
  // A stage whose forward lacks `delay` updates multiplies the learning rate of a step, counted from 0, by this factor.
  double rate_factor(double delay, std::int64_t step) const;
  // gamma = D^(1 / discrepancy), of a stage whose forward lacks so many updates more than its backward.
  double keeping(double discrepancy) const;
  std::vector<StateSlot> slots() const;  // what is kept of each element beside the slots of the optimizer
};

// Technique 2, discrepancy correction: a backward reads what the weights were about when its forward read them,
//
//   delta = gamma delta + (1 - gamma) (w_new - w_old)      behind each update; 0 in the beginning
//   u = w_new - discrepancy delta                          what backwards read until the next update
//
//   PipeMare correction(parameters, optimizer, discrepancy, options);   // before a CheckpointSaver is made
//   correction.begin();                                                 // when the pipeline is empty
//   for each update:
//     parameters.keep_version();
//     optimizer.step();
//     correction.updated();
//
// u lies where the version before the latest would lie: ShardedParameters::Options::versions is 2. With a discrepancy of 0
// there is nothing to correct, and the calls do nothing. Memory: delta, in the accumulator type, divided as the optimizer's
// state is; and u. From ZeroStage::optimizer on, ranks bring u to each other as they do values.
class STRETTO_API PipeMare {
 public:
  // Adds a slot to the optimizer. Both must outlive the object. Throws Error(invalid_argument) like
  // PipeMareOptions::check(), for a discrepancy below 0, and for parameters without a second version.
  PipeMare(ShardedParameters& parameters, Optimizer& optimizer, double discrepancy, const PipeMareOptions& options);

  // Makes u of the weights and delta that are there. Collective over the ranks of the stage.
  void begin();
  // Behind an update, before which keep_version() has kept w_old. Collective likewise.
  void updated();
  bool corrects() const { return discrepancy_ > 0; }

 private:
  void correct(bool has_changed);

  ShardedParameters& parameters_;
  Optimizer& optimizer_;
  std::size_t slot_ = 0;
  double discrepancy_ = 0, keeping_ = 0;
};

}  // namespace stretto
