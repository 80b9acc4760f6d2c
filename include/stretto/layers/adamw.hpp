#pragma once
#include "stretto/layers/optimizer.hpp"

namespace stretto {

// AdamW (Loshchilov & Hutter 2017); torch.optim.AdamW computes the same. Weight decay is decoupled from the gradient, and
// spares parameters whose record says so (Parameter::decays). State of an element: 8 bytes, or 12 with 16-bit values.
class STRETTO_API AdamW : public Optimizer {
 public:
  struct STRETTO_API Options {
    double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, weight_decay = 0.1;
    OptimizerKind kind() const;
  };
  AdamW(ShardedParameters& parameters, const Options& options);
  explicit AdamW(ShardedParameters& parameters) : AdamW(parameters, Options()) {}

 private:
  void update(const ShardedParameters::Range& range, const Parameter& parameter, const State& state,
              const Step& step) override;

  Options options_;
};

}  // namespace stretto
