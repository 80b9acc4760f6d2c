#include "layers/checkpoint/whole_state.hpp"

#include <algorithm>
#include <cmath>
#include <span>

#include "core/fail.hpp"
#include "stretto/kernels.hpp"

namespace stretto {

namespace {

template <class T>
void require_all_finite(std::span<const T> values, const std::string& name, const std::string& from) {
  const auto found = std::ranges::find_if_not(values, [](T value) { return std::isfinite(value); });
  if (found == values.end()) return;
  fail(ErrorCode::io,
       "{} has {} among the numbers of {}: its training has failed; load an earlier checkpoint, or another model.", from,
       *found, name);
}

}  // namespace

void require_finite(const Tensor& values, const std::string& name, const std::string& from) {
  const auto size = static_cast<std::size_t>(values.size());
  if (values.dtype() == DType::f64)
    return require_all_finite(std::span<const double>(values.data<double>(), size), name, from);
  require_all_finite(std::span<const float>(values.data<float>(), size), name, from);
}

WholeState::WholeState(const ShardedParameters& parameters, const AdamWOptimizer& optimizer)
    : parameters_(parameters), optimizer_(optimizer), ranges_(parameters.parameters().all().size()) {
  const auto& ranges = parameters.ranges();
  for (std::size_t i = 0; i < ranges.size(); ++i) ranges_[ranges[i].parameter].push_back(i);
}

DType WholeState::dtype() const { return kernels::accumulator(parameters_.options().dtype); }

Tensor WholeState::gather(const Parameter& parameter, StateTensor which) const {
  Tensor sum(parameter.global_shape, dtype(), Device::cpu);
  sum.zero();
  for (const std::size_t i : ranges_[parameter.index]) {
    const ShardedParameters::Range& range = parameters_.ranges()[i];
    if (!range.owned) continue;
    const Tensor own = (optimizer_.states()[i].*which).on(Device::cpu);
    for_each_run(parameter, range.first, range.count, [&](std::int64_t from, std::int64_t to, std::int64_t count) {
      sum.view(to, {count}).copy_from(own.view(from, {count}));
    });
  }
  const Communicator& world = parameters_.mesh().world();
  if (world.size() > 1) {
    const DType bits = size_of(dtype()) == 8 ? DType::i64 : DType::i32;  // as numbers, -0 and 0 would add up to 0
    world.reduce(sum.raw(), sum.raw(), sum.size(), bits, ReduceOp::sum, 0, Stream::inline_(), {.tag = "checkpoint"}).wait();
  }
  return sum;
}

void WholeState::set(const Parameter& parameter, StateTensor which, const std::function<double(std::int64_t)>& value_at,
                     const std::string& name, const std::string& from) const {
  for (const std::size_t i : ranges_[parameter.index]) {
    const ShardedParameters::Range& range = parameters_.ranges()[i];
    const Tensor& state = optimizer_.states()[i].*which;
    const Tensor target(state.shape(), state.dtype(), Device::cpu);
    for_each_run(parameter, range.first, range.count, [&](std::int64_t to, std::int64_t whole, std::int64_t count) {
      for (std::int64_t k = 0; k < count; ++k) target.set(to + k, value_at(whole + k));
    });
    require_finite(target, name, from);
    state.copy_from(target);
  }
}

}  // namespace stretto
