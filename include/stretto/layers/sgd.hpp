#pragma once
#include "stretto/layers/optimizer.hpp"

namespace stretto {

// Stochastic gradient descent with momentum, as torch.optim.SGD computes it without dampening and Nesterov's step: weight
// decay is added to the gradient, g += weight_decay p, and spares parameters whose record says so (Parameter::decays); then
// b = momentum b + g and p -= lr b. State of an element: 4 bytes, or 8 with 16-bit values; without momentum 4 less.
class STRETTO_API SGD : public Optimizer {
 public:
  struct STRETTO_API Options {
    double momentum = 0.9, weight_decay = 0;
    void check() const;          // throws Error(invalid_argument) for a momentum below 0 or from 1 on
    OptimizerKind kind() const;  // of momentum 0: one without slots
  };
  // Throws like Options::check().
  SGD(ShardedParameters& parameters, const Options& options);
  explicit SGD(ShardedParameters& parameters) : SGD(parameters, Options()) {}

 private:
  void update(const ShardedParameters::Range& range, const Parameter& parameter, const State& state,
              const Step& step) override;

  Options options_;
};

}  // namespace stretto
