#include "layers/checkpoint/whole_values.hpp"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "core/fail.hpp"
#include "stretto/kernels.hpp"

namespace stretto {

namespace {

template <class T>
double first_not_finite(std::span<const T> values) {
  const auto found = std::ranges::find_if_not(values, [](T value) { return std::isfinite(value); });
  return found == values.end() ? 0 : static_cast<double>(*found);
}

double first_not_finite(const Tensor& values) {
  const auto size = static_cast<std::size_t>(values.size());
  if (values.dtype() == DType::f64) return first_not_finite(std::span<const double>(values.data<double>(), size));
  if (values.dtype() == DType::f32) return first_not_finite(std::span<const float>(values.data<float>(), size));
  for (std::int64_t i = 0; i < values.size(); ++i) {
    if (!std::isfinite(values.at(i))) return values.at(i);
  }
  return 0;
}

}  // namespace

void require_finite(const Tensor& values, const std::string& name, const std::string& from) {
  const double found = first_not_finite(values);
  if (std::isfinite(found)) return;
  fail(ErrorCode::io,
       "{} has {} among the numbers of {}: its training has failed; load an earlier checkpoint, or another model.", from,
       found, name);
}

WholeValues::WholeValues(const ShardedParameters& parameters, const Optimizer& optimizer)
    : parameters_(parameters), optimizer_(optimizer), ranges_(parameters.parameters().all().size()) {
  const auto& ranges = parameters.ranges();
  for (std::size_t i = 0; i < ranges.size(); ++i) ranges_[ranges[i].parameter].push_back(i);
}

Tensor WholeValues::gather(const Parameter& parameter) const {
  const DType dtype = kernels::accumulator(parameters_.options().dtype);
  Tensor sum(parameter.global_shape, dtype, Device::cpu);
  sum.zero();
  for (const auto& record : parameters_.parameters().all()) {
    if (record->global_name() == parameter.global_name()) copy_own(*record, sum);
  }
  const Communicator& world = parameters_.mesh().world();
  if (world.size() > 1) {
    const DType bits = size_of(dtype) == 8 ? DType::i64 : DType::i32;  // as numbers, -0 and 0 would add up to 0
    world.reduce(sum.raw(), sum.raw(), sum.size(), bits, ReduceOp::sum, 0, Stream::inline_(), {.tag = "checkpoint"}).wait();
  }
  return sum;
}

void WholeValues::copy_own(const Parameter& record, const Tensor& whole) const {
  for (const std::size_t i : ranges_[record.index]) {
    const ShardedParameters::Range& range = parameters_.ranges()[i];
    if (!range.owned) continue;
    Tensor own = optimizer_.weights(i).on(Device::cpu);
    if (own.dtype() != whole.dtype()) {  // of a frozen parameter
      const Tensor narrow = std::exchange(own, Tensor(own.shape(), whole.dtype(), Device::cpu));
      for (std::int64_t k = 0; k < own.size(); ++k) own.set(k, narrow.at(k));
    }
    for_each_run(record, range.first, range.count, [&](std::int64_t from, std::int64_t to, std::int64_t count) {
      whole.view(to, {count}).copy_from(own.view(from, {count}));
    });
    optimizer_.release(range.unit);
  }
}

void WholeValues::set(const Parameter& parameter, const Fill& fill, const std::string& name, const std::string& from) const {
  for (const std::size_t i : ranges_[parameter.index]) {
    const Tensor& state = optimizer_.weights(i);
    const Tensor target(state.shape(), state.dtype(), Device::cpu);
    fill(parameters_.ranges()[i], target);
    require_finite(target, name, from);
    state.copy_from(target);
    optimizer_.release(parameters_.ranges()[i].unit);
  }
}

}  // namespace stretto
