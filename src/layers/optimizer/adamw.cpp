#include "stretto/layers/adamw.hpp"

#include "layers/optimizer/adamw_step.hpp"

namespace stretto {

OptimizerKind AdamW::Options::kind() const { return {.name = "adamw", .slots = {{"m"}, {"v"}}}; }

AdamW::AdamW(ShardedParameters& parameters, const Options& options)
    : Optimizer(parameters, options.kind()), options_(options) {}

void AdamW::update(const ShardedParameters::Range& range, const Parameter& parameter, const State& state, const Step& step) {
  update_by_adamw(options_, range, parameter, state, step);
}

}  // namespace stretto
