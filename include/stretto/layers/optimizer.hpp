#pragma once
#include <vector>

#include "stretto/layers/sharded_parameters.hpp"

namespace stretto {

// The Euclidean norm of the whole gradient, between finish_sums() and begin_step(); the same on every rank and at every ZeRO
// stage. Every element counts once, on its owner. Costs one all-reduce of one number over all ranks. On a GPU it blocks
// once.
STRETTO_API double gradient_norm(const ShardedParameters& parameters);

// AdamW (Loshchilov & Hutter 2017) for the elements that this rank updates (ShardedParameters::ranges). Moments are kept in
// the accumulator type; so are master weights, if the compute type has 16 bits: 8 or 12 bytes of state per element in f32.
class STRETTO_API AdamWOptimizer {
 public:
  struct Options {
    double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, weight_decay = 0.1;
  };
  // `parameters` must outlive the optimizer.
  AdamWOptimizer(ShardedParameters& parameters, const Options& options);
  explicit AdamWOptimizer(ShardedParameters& parameters) : AdamWOptimizer(parameters, Options()) {}

  // Updates all elements; gradient_scale multiplies every gradient first. The new values travel to other ranks when it has
  // returned.
  void step(double lr, double gradient_scale);

  // The state of each of ShardedParameters::ranges(), in their order, for checkpoints. At ZeroStage::none, that of elements
  // which another rank owns may be stale.
  struct State {
    Tensor master;  // the values themselves if the compute type is the accumulator type
    Tensor m, v;
  };
  const std::vector<State>& states() const { return states_; }
  std::int64_t steps() const { return steps_; }
  // Call it after the caller has written the states: rounds the master weights into the values. Collective.
  void restore(std::int64_t steps);
  // Call it after the caller has written the values: copies them into the master weights.
  void adopt_values();

 private:
  void update(std::size_t unit, double lr, double gradient_scale);

  ShardedParameters& parameters_;
  Options options_;
  std::vector<State> states_;
  std::int64_t steps_ = 0;
};

// The learning rate at a step, counted from 0: a linear warm-up to `peak`, then half a cosine from `peak` to `floor`
// over the remaining steps (Loshchilov & Hutter 2016).
struct STRETTO_API CosineSchedule {
  double peak = 1e-3, floor = 1e-4;
  std::int64_t warmup_steps = 0, total_steps = 1;
  double at(std::int64_t step) const;
};

}  // namespace stretto
