#pragma once
#include <utility>

#include "stretto/layers/optimizer.hpp"

namespace stretto {

// The optimizer of a worker whose values parameter servers update: step() asks for the new values, in the order in which
// forward needs them, and steps() counts. The rate, the scale and the state are the servers'.
class STRETTO_API ServedOptimizer final : public Optimizer {
 public:
  // kind: of the servers' updates.
  ServedOptimizer(ShardedParameters& parameters, OptimizerKind kind) : Optimizer(parameters, std::move(kind)) {}

 private:
  void update(const ShardedParameters::Range& /*range*/, const Parameter& /*parameter*/, const State& /*state*/,
              const Step& /*step*/) override {}
};

}  // namespace stretto
