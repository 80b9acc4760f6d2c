#pragma once
#include "stretto/kernels.hpp"
#include "stretto/layers/sharded_parameters.hpp"

namespace stretto {

// AdamW's update of a range, for AdamW and for optimizers that leave a part of their updates to it: Optimizer::update(). The
// state's slots are AdamW's two moments.
template <class Options, class State, class Step>
void update_by_adamw(const Options& options, const ShardedParameters::Range& range, const Parameter& parameter,
                     const State& state, const Step& step) {
  const kernels::AdamWStep adamw{.lr = step.lr,
                                 .beta1 = options.beta1,
                                 .beta2 = options.beta2,
                                 .epsilon = options.epsilon,
                                 .weight_decay = parameter.decays ? options.weight_decay : 0,
                                 .step = step.number,
                                 .gradient_scale = step.gradient_scale};
  kernels::adamw(adamw, range.gradient, state.master, state.slots[0], state.slots[1], range.value);
}

}  // namespace stretto
