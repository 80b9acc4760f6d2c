#include "stretto/layers/optimizer.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "stretto/kernels.hpp"

namespace stretto {

double gradient_norm(const ShardedParameters& parameters) {
  std::vector<Tensor> gradients;
  for (const ShardedParameters::Range& range : parameters.ranges()) {
    if (range.owned) gradients.push_back(range.gradient);
  }
  double squares = 0;
  for (const double each : kernels::sums_of_squares(gradients)) squares += each;
  const Communicator& world = parameters.mesh().world();
  if (world.size() > 1) {
    world.all_reduce(&squares, &squares, 1, DType::f64, ReduceOp::sum, Stream::inline_(), {.tag = "gradient norm"}).wait();
  }
  return std::sqrt(squares);
}

AdamWOptimizer::AdamWOptimizer(ShardedParameters& parameters, const Options& options)
    : parameters_(parameters), options_(options) {
  const MemoryScope state(MemoryKind::optimizer);
  const DType dtype = parameters.options().dtype;
  const DType accumulator = kernels::accumulator(dtype);
  std::int64_t elements = 0;
  for (const ShardedParameters::Range& range : parameters.ranges()) elements += range.count;
  const Tensor m = Tensor::zeros({elements}, accumulator);
  const Tensor v = Tensor::zeros({elements}, accumulator);
  const Tensor master = dtype == accumulator ? Tensor() : Tensor({elements}, accumulator);
  std::int64_t first = 0;
  for (const ShardedParameters::Range& range : parameters.ranges()) {
    const auto part = [&](const Tensor& whole) { return whole.view(first, {range.count}); };
    states_.push_back({master ? part(master) : range.value, part(m), part(v)});
    first += range.count;
  }
  adopt_values();
}

void AdamWOptimizer::step(double lr, double gradient_scale) {
  ++steps_;
  parameters_.update([&](std::size_t unit) { update(unit, lr, gradient_scale); });
}

void AdamWOptimizer::update(std::size_t unit, double lr, double gradient_scale) {
  for (const std::size_t i : parameters_.ranges_to_update(unit)) {
    const ShardedParameters::Range& range = parameters_.ranges()[i];
    const State& state = states_[i];
    const kernels::AdamW options{
        .lr = lr,
        .beta1 = options_.beta1,
        .beta2 = options_.beta2,
        .epsilon = options_.epsilon,
        .weight_decay = parameters_.parameters().all()[range.parameter]->decays ? options_.weight_decay : 0,
        .step = steps_,
        .gradient_scale = gradient_scale};
    kernels::adamw(options, range.gradient, state.master, state.m, state.v, range.value);
  }
}

void AdamWOptimizer::restore(std::int64_t steps) {
  steps_ = steps;
  for (std::size_t i = 0; i < states_.size(); ++i) kernels::convert(states_[i].master, parameters_.ranges()[i].value);
  parameters_.share_values();
}

void AdamWOptimizer::adopt_values() {
  for (std::size_t i = 0; i < states_.size(); ++i) kernels::convert(parameters_.ranges()[i].value, states_[i].master);
}

double CosineSchedule::at(std::int64_t step) const {
  if (step < warmup_steps) return peak * static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
  const auto span = static_cast<double>(std::max<std::int64_t>(1, total_steps - warmup_steps));
  const double progress = std::min(1.0, static_cast<double>(step - warmup_steps) / span);
  return floor + (peak - floor) * 0.5 * (1 + std::cos(std::numbers::pi * progress));
}

}  // namespace stretto
