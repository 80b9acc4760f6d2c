#include "stretto/layers/pipemare.hpp"

#include <algorithm>
#include <cmath>

#include "core/fail.hpp"
#include "stretto/kernels.hpp"

namespace stretto {

namespace {

constexpr std::int64_t piece_elements = std::int64_t{1} << 16;  // so that what is computed in between stays in a cache

}  // namespace

void PipeMareOptions::check() const {
  require(annealing_steps >= 0, "Rates of stages cannot approach each other in {} steps; give 0 or more.", annealing_steps);
  require(decay > 0 && decay < 1, "A decay of {} keeps all or nothing of the changes before; give one above 0, below 1.",
          decay);
}

double PipeMareOptions::rate_factor(double delay, std::int64_t step) const {
  if (step >= annealing_steps) return 1;
  const double q = 1 - static_cast<double>(step) / static_cast<double>(annealing_steps);
  return 1 / std::pow(std::max(1.0, delay), q);
}

// Wider, since the power makes several of the quotient's last bit.
double PipeMareOptions::keeping(double discrepancy) const {
  return static_cast<double>(std::pow(static_cast<long double>(decay), 1 / static_cast<long double>(discrepancy)));
}

std::vector<StateSlot> PipeMareOptions::slots() const { return {{"delta"}}; }

PipeMare::PipeMare(ShardedParameters& parameters, Optimizer& optimizer, double discrepancy, const PipeMareOptions& options)
    : parameters_(parameters), optimizer_(optimizer), slot_(optimizer.kind().slots.size()), discrepancy_(discrepancy) {
  options.check();
  require(discrepancy >= 0, "A forward cannot lack {} updates more than its backward; give 0 or more.", discrepancy);
  require(discrepancy == 0 || parameters.options().versions == 2,
          "Corrected weights lie in a second version, and {} are kept; let them be 2.", parameters.options().versions);
  if (corrects()) keeping_ = options.keeping(discrepancy);
  optimizer.add_slots(options.slots());
}

void PipeMare::begin() {
  if (!corrects()) return;
  parameters_.wait_for_values();
  correct(false);
}

void PipeMare::updated() {
  if (corrects()) correct(true);
}

void PipeMare::correct(bool has_changed) {
  const DType wide = kernels::accumulator(parameters_.options().dtype);
  const auto in_accumulator = [wide](const Tensor& values) {
    Tensor result(values.shape(), wide);
    kernels::convert(values, result);
    return result;
  };
  const std::vector<Optimizer::State>& states = optimizer_.states();
  const MemoryScope buffers(MemoryKind::buffers);
  for (const std::size_t unit : parameters_.update_order()) {
    for (const std::size_t i : parameters_.ranges_to_update(unit)) {
      const ShardedParameters::Range& range = parameters_.ranges()[i];
      const Tensor corrected_range = parameters_.older_value(range);
      for (std::int64_t first = 0; first < range.count; first += piece_elements) {
        const Shape piece = {std::min(piece_elements, range.count - first)};
        const Tensor delta = states[i].slots[slot_].view(first, piece);
        const Tensor corrected = corrected_range.view(first, piece);
        const Tensor value = in_accumulator(range.value.view(first, piece));
        if (has_changed) {
          const Tensor change = in_accumulator(corrected);  // from the value before the update
          kernels::scale(change, -1);
          kernels::add(value, change, change);
          kernels::scale(change, 1 - keeping_);
          kernels::scale(delta, keeping_);
          kernels::add(delta, change, delta);
        }
        const Tensor moved = delta.clone();
        kernels::scale(moved, -discrepancy_);
        kernels::add(value, moved, moved);
        kernels::convert(moved, corrected);
      }
    }
    optimizer_.release(unit);
    parameters_.share_older_values(unit);
  }
}

}  // namespace stretto
