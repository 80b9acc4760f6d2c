#include "stretto/layers/adamw.hpp"

#include "stretto/kernels.hpp"

namespace stretto {

OptimizerKind AdamW::Options::kind() const { return {.name = "adamw", .slots = {{"m"}, {"v"}}}; }

AdamW::AdamW(ShardedParameters& parameters, const Options& options)
    : Optimizer(parameters, options.kind()), options_(options) {}

void AdamW::update(const ShardedParameters::Range& range, const Parameter& parameter, const State& state, const Step& step) {
  const kernels::AdamWStep options{.lr = step.lr,
                                   .beta1 = options_.beta1,
                                   .beta2 = options_.beta2,
                                   .epsilon = options_.epsilon,
                                   .weight_decay = parameter.decays ? options_.weight_decay : 0,
                                   .step = step.number,
                                   .gradient_scale = step.gradient_scale};
  kernels::adamw(options, range.gradient, state.master, state.slots[0], state.slots[1], range.value);
}

}  // namespace stretto
