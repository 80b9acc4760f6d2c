#pragma once
#include "stretto/layers/parameter.hpp"
#include "stretto/overlap/flat_tensors.hpp"

namespace stretto {

// The Euclidean norm of the whole gradient, to be called when the gradients have been summed. The same on every rank. A
// divided parameter is summed over the ranks that hold its slices; a replicated one counts once. Costs one all-reduce
// of one number over the tensor-parallel group. On a GPU it blocks once.
STRETTO_API double gradient_norm(const Parameters& parameters, const Mesh& mesh);
// Like the above, if this rank has only the sums of the elements in `ranges`. The ranges of all data-parallel ranks
// together must hold every element once. ElementRange::tensor is an index into Parameters::all(). Costs one all-reduce
// of one number over all ranks.
STRETTO_API double gradient_norm(const Parameters& parameters, const Mesh& mesh, const std::vector<ElementRange>& ranges);

// AdamW (Loshchilov & Hutter 2017) for this rank's slices. Moments are kept in the accumulator type; so are master
// weights, if the compute type has 16 bits.
class STRETTO_API AdamWOptimizer {
 public:
  struct Options {
    double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, weight_decay = 0.1;
  };
  AdamWOptimizer(Parameters& parameters, const Options& options);

  // Updates all elements. gradient_scale multiplies every gradient first.
  void step(double lr, double gradient_scale);
  // step() in parts: call begin_step() once, then update() any number of times. The ranges must not overlap; how elements
  // are divided into ranges changes no bits. The state of elements that other ranks update is stale on this rank until the
  // caller copies it from those ranks.
  void begin_step(double lr, double gradient_scale);
  void update(const std::vector<ElementRange>& ranges);

  // The state of each parameter, in the order of Parameters::all(), for checkpoints.
  struct State {
    Tensor master;  // the parameter's value itself if the compute type is the accumulator type
    Tensor m, v;
  };
  const std::vector<State>& states() const { return states_; }
  std::int64_t steps() const { return steps_; }
  // Call it after the caller has written the states: rounds the master weights into the values.
  void restore(std::int64_t steps);
  // Call it after the caller has written the values: copies them into the master weights.
  void adopt_values();

 private:
  Parameters& parameters_;
  Options options_;
  std::vector<State> states_;
  std::int64_t steps_ = 0;
  double lr_ = 0, gradient_scale_ = 1;  // set by begin_step()
};

// The learning rate at a step, counted from 0: a linear warm-up to `peak`, then half a cosine from `peak` to `floor`
// over the remaining steps (Loshchilov & Hutter 2016).
struct STRETTO_API CosineSchedule {
  double peak = 1e-3, floor = 1e-4;
  std::int64_t warmup_steps = 0, total_steps = 1;
  double at(std::int64_t step) const;
};

}  // namespace stretto
