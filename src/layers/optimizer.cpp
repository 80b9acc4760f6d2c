#include "stretto/layers/optimizer.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

#include "stretto/kernels.hpp"

namespace stretto {

namespace {

bool counts_here(const Parameter& parameter, const Mesh& mesh) {
  return !parameter.is_replicated_over(Axis::tensor) || mesh.tensor.rank() == 0;
}

double squares_of(const std::vector<Tensor>& gradients) {
  const std::vector<double> squares = kernels::sums_of_squares(gradients);
  return std::accumulate(squares.begin(), squares.end(), 0.0);
}

}  // namespace

double gradient_norm(const Parameters& parameters, const Mesh& mesh) {
  std::vector<Tensor> gradients;
  for (const auto& parameter : parameters.all()) {
    if (counts_here(*parameter, mesh)) gradients.push_back(parameter->gradient);
  }
  double squares = squares_of(gradients);
  if (mesh.tensor.size() > 1) {
    mesh.tensor.all_reduce(&squares, &squares, 1, DType::f64, ReduceOp::sum, Stream::inline_(), {.tag = "gradient norm"});
  }
  return std::sqrt(squares);
}

double gradient_norm(const Parameters& parameters, const Mesh& mesh, const std::vector<ElementRange>& ranges) {
  std::vector<Tensor> gradients;
  for (const ElementRange& range : ranges) {
    const Parameter& parameter = *parameters.all().at(range.tensor);
    if (counts_here(parameter, mesh)) gradients.push_back(parameter.gradient.view(range.first, {range.count}));
  }
  double squares = squares_of(gradients);
  if (mesh.world.size() > 1) {
    mesh.world.all_reduce(&squares, &squares, 1, DType::f64, ReduceOp::sum, Stream::inline_(), {.tag = "gradient norm"});
  }
  return std::sqrt(squares);
}

AdamWOptimizer::AdamWOptimizer(Parameters& parameters, const Options& options) : parameters_(parameters), options_(options) {
  const DType accumulator = kernels::accumulator(parameters.compute_type());
  for (const auto& parameter : parameters.all()) {
    const bool own_master = parameter->value.dtype() != accumulator;
    states_.push_back({own_master ? Tensor(parameter->extents, accumulator) : parameter->value,
                       Tensor::zeros(parameter->extents, accumulator), Tensor::zeros(parameter->extents, accumulator)});
  }
  adopt_values();
}

void AdamWOptimizer::step(double lr, double gradient_scale) {
  std::vector<ElementRange> all;
  for (std::size_t i = 0; i < states_.size(); ++i) all.push_back({i, 0, states_[i].m.size()});
  begin_step(lr, gradient_scale);
  update(all);
}

void AdamWOptimizer::begin_step(double lr, double gradient_scale) {
  ++steps_;
  lr_ = lr;
  gradient_scale_ = gradient_scale;
}

void AdamWOptimizer::update(const std::vector<ElementRange>& ranges) {
  for (const ElementRange& range : ranges) {
    const Parameter& parameter = *parameters_.all().at(range.tensor);
    const State& state = states_[range.tensor];
    const auto part = [&](const Tensor& whole) { return whole.view(range.first, {range.count}); };
    const kernels::AdamW options{.lr = lr_,
                                 .beta1 = options_.beta1,
                                 .beta2 = options_.beta2,
                                 .epsilon = options_.epsilon,
                                 .weight_decay = parameter.decays ? options_.weight_decay : 0,
                                 .step = steps_,
                                 .gradient_scale = gradient_scale_};
    kernels::adamw(options, part(parameter.gradient), part(state.master), part(state.m), part(state.v),
                   part(parameter.value));
  }
}

void AdamWOptimizer::restore(std::int64_t steps) {
  steps_ = steps;
  for (std::size_t i = 0; i < states_.size(); ++i) kernels::convert(states_[i].master, parameters_.all()[i]->value);
}

void AdamWOptimizer::adopt_values() {
  for (std::size_t i = 0; i < states_.size(); ++i) kernels::convert(parameters_.all()[i]->value, states_[i].master);
}

double CosineSchedule::at(std::int64_t step) const {
  if (step < warmup_steps) return peak * static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
  const auto span = static_cast<double>(std::max<std::int64_t>(1, total_steps - warmup_steps));
  const double progress = std::min(1.0, static_cast<double>(step - warmup_steps) / span);
  return floor + (peak - floor) * 0.5 * (1 + std::cos(std::numbers::pi * progress));
}

}  // namespace stretto
