#include "stretto/layers/sgd.hpp"

#include "core/fail.hpp"
#include "stretto/kernels.hpp"

namespace stretto {

OptimizerKind SGD::Options::kind() const {
  OptimizerKind kind{.name = "sgd", .slots = {}};
  if (momentum != 0) kind.slots.push_back({"momentum"});
  return kind;
}

void SGD::Options::check() const {
  require(momentum >= 0 && momentum < 1, "A momentum of {} adds up without end; give 0 or more, below 1.", momentum);
}

SGD::SGD(ShardedParameters& parameters, const Options& options) : Optimizer(parameters, options.kind()), options_(options) {
  options.check();
}

void SGD::update(const ShardedParameters::Range& range, const Parameter& parameter, const State& state, const Step& step) {
  const kernels::SGDStep options{.lr = step.lr,
                                 .momentum = options_.momentum,
                                 .weight_decay = parameter.decays ? options_.weight_decay : 0,
                                 .gradient_scale = step.gradient_scale};
  // Others may have added slots.
  kernels::sgd(options, range.gradient, state.master, options_.momentum == 0 ? Tensor() : state.slots[0], range.value);
}

}  // namespace stretto
