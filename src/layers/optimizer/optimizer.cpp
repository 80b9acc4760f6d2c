#include "stretto/layers/optimizer.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <set>
#include <utility>

#include "core/fail.hpp"
#include "stretto/kernels.hpp"

namespace stretto {
namespace {

void fill(const Tensor& tensor, double value) {
  const Tensor values(tensor.shape(), tensor.dtype(), Device::cpu);
  for (std::int64_t i = 0; i < values.size(); ++i) values.set(i, value);
  tensor.copy_from(values);
}

}  // namespace

double gradient_norm(const ShardedParameters& parameters) { return gradient_norm(parameters, parameters.mesh().world()); }

double gradient_norm(const ShardedParameters& parameters, const Communicator& group) {
  std::vector<Tensor> gradients;
  for (const ShardedParameters::Range& range : parameters.ranges()) {
    if (range.owned && range.gradient) gradients.push_back(range.gradient);
  }
  double squares = 0;
  for (const double each : kernels::sums_of_squares(gradients)) squares += each;
  if (group.size() > 1) {
    group.all_reduce(&squares, &squares, 1, DType::f64, ReduceOp::sum, Stream::inline_(), {.tag = "gradient norm"}).wait();
  }
  return std::sqrt(squares);
}

std::int64_t OptimizerKind::state_bytes(DType compute) const {
  const DType wide = kernels::accumulator(compute);
  std::size_t bytes = compute == wide ? 0 : size_of(wide);
  for (const StateSlot& slot : slots) bytes += size_of(slot.dtype.value_or(wide));
  return static_cast<std::int64_t>(bytes);
}

std::string to_string(const OptimizerKind& kind) {
  std::vector<std::string> names;
  for (const StateSlot& slot : kind.slots) names.push_back(slot.name);
  return names.empty() ? kind.name + " without slots" : fmt::format("{} ({})", kind.name, fmt::join(names, ", "));
}

Optimizer::Optimizer(ShardedParameters& parameters, OptimizerKind kind) : parameters_(parameters), kind_(std::move(kind)) {
  const MemoryScope memory(MemoryKind::optimizer);
  const DType dtype = parameters.options().dtype;
  const DType wide = kernels::accumulator(dtype);
  std::int64_t elements = 0;
  for (const ShardedParameters::Range& range : parameters.ranges()) elements += range.gradient ? range.count : 0;
  const Tensor master = dtype == wide ? Tensor() : Tensor({elements}, wide);
  std::int64_t first = 0;
  for (const ShardedParameters::Range& range : parameters.ranges()) {
    State& state = states_.emplace_back();
    if (!range.gradient) continue;
    state.master = master ? master.view(first, {range.count}) : range.value;
    first += range.count;
  }
  make_slots(kind_.slots);
  adopt_values();
}

void Optimizer::add_slots(const std::vector<StateSlot>& slots) {
  kind_.slots.insert(kind_.slots.end(), slots.begin(), slots.end());
  make_slots(slots);
}

void Optimizer::make_slots(const std::vector<StateSlot>& slots) {
  std::set<std::string> names;
  for (const StateSlot& slot : kind_.slots) {
    require(names.insert(slot.name).second, "Optimizer {} has two slots '{}'; give each a name of its own.", kind_.name,
            slot.name);
  }
  const MemoryScope memory(MemoryKind::optimizer);
  const DType wide = kernels::accumulator(parameters_.options().dtype);
  std::int64_t elements = 0;
  for (const ShardedParameters::Range& range : parameters_.ranges()) elements += range.gradient ? range.count : 0;
  for (const StateSlot& slot : slots) {
    const Tensor all = Tensor::zeros({elements}, slot.dtype.value_or(wide));
    if (slot.initial != 0) fill(all, slot.initial);
    std::int64_t first = 0;
    for (std::size_t i = 0; i < states_.size(); ++i) {
      const ShardedParameters::Range& range = parameters_.ranges()[i];
      if (!range.gradient) continue;
      states_[i].slots.push_back(all.view(first, {range.count}));
      first += range.count;
    }
  }
}

void Optimizer::step(double lr, double gradient_scale) {
  const Step step{.lr = lr, .gradient_scale = gradient_scale, .number = ++steps_};
  parameters_.update([&](std::size_t unit) {
    for (const std::size_t i : parameters_.ranges_to_update(unit)) {
      const ShardedParameters::Range& range = parameters_.ranges()[i];
      update(range, *parameters_.parameters().all()[range.parameter], states_[i], step);
    }
  });
}

void Optimizer::restore(std::int64_t steps) {
  steps_ = steps;
  for (std::size_t i = 0; i < states_.size(); ++i) {
    if (states_[i].master) kernels::convert(states_[i].master, parameters_.ranges()[i].value);
  }
  parameters_.share_values();
}

void Optimizer::adopt_values() {
  for (std::size_t i = 0; i < states_.size(); ++i) {
    if (states_[i].master) kernels::convert(parameters_.ranges()[i].value, states_[i].master);
  }
}

const Tensor& Optimizer::weights(std::size_t range) const {
  return states_[range].master ? states_[range].master : parameters_.ranges()[range].value;
}

double CosineSchedule::at(std::int64_t step) const {
  if (step < warmup_steps) return peak * static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
  const auto span = static_cast<double>(std::max<std::int64_t>(1, total_steps - warmup_steps));
  const double progress = std::min(1.0, static_cast<double>(step - warmup_steps) / span);
  return floor + (peak - floor) * 0.5 * (1 + std::cos(std::numbers::pi * progress));
}

}  // namespace stretto
