#pragma once
#include "stretto/layers/parameter.hpp"
#include "stretto/overlap/flat_tensors.hpp"

namespace stretto {

// The Euclidean norm of the whole gradient, after the gradients have been summed: the same on every rank. Slices are added
// up over the axes that divide a parameter; what is replicated counts once. Costs one all-reduce of one number over the
// tensor-parallel group; a GPU is waited for once.
STRETTO_API double gradient_norm(const Parameters& parameters, const Mesh& mesh);
// The same where this rank has the sums of some elements only; the ranges of all data-parallel ranks together hold every
// element once. ElementRange::tensor counts as Parameters::all() does. Costs one all-reduce of one number over all ranks.
STRETTO_API double gradient_norm(const Parameters& parameters, const Mesh& mesh, const std::vector<ElementRange>& ranges);

// AdamW (Loshchilov & Hutter 2017) over this rank's slices. Moments, and master weights where the compute type has 16 bits,
// are kept in the accumulator type.
class STRETTO_API AdamWOptimizer {
 public:
  struct Options {
    double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, weight_decay = 0.1;
  };
  AdamWOptimizer(Parameters& parameters, const Options& options);

  // gradient_scale multiplies every gradient first.
  void step(double lr, double gradient_scale);
  // The same in parts: a step begins, then elements are updated, each at most once. The bits do not depend on how they are
  // divided. Other ranks may update the others: their state here is then worth nothing until it is brought here.
  void begin_step(double lr, double gradient_scale);
  void update(const std::vector<ElementRange>& ranges);

  // The state, by parameter in the order of Parameters::all(): for checkpoints.
  struct State {
    Tensor master;  // the value itself where the compute type is the accumulator type
    Tensor m, v;
  };
  const std::vector<State>& states() const { return states_; }
  std::int64_t steps() const { return steps_; }
  // After the states were written from outside: rounds the master weights to the values.
  void restore(std::int64_t steps);
  // After the values were written from outside: the master weights begin from them.
  void adopt_values();

 private:
  Parameters& parameters_;
  Options options_;
  std::vector<State> states_;
  std::int64_t steps_ = 0;
  double lr_ = 0, gradient_scale_ = 1;  // of the step that has begun
};

// lr at a step counted from 0: a linear warm-up, then half a cosine from peak to floor over what is left (Loshchilov &
// Hutter 2016).
struct STRETTO_API CosineSchedule {
  double peak = 1e-3, floor = 1e-4;
  std::int64_t warmup_steps = 0, total_steps = 1;
  double at(std::int64_t step) const;
};

}  // namespace stretto
