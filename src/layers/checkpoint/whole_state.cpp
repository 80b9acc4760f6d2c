#include "layers/checkpoint/whole_state.hpp"

#include "stretto/kernels.hpp"

namespace stretto {

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
    world.reduce(sum.raw(), sum.raw(), sum.size(), dtype(), ReduceOp::sum, 0, Stream::inline_(), {.tag = "checkpoint"})
        .wait();
  }
  return sum;
}

void WholeState::set(const Parameter& parameter, StateTensor which,
                     const std::function<double(std::int64_t)>& value_at) const {
  for (const std::size_t i : ranges_[parameter.index]) {
    const ShardedParameters::Range& range = parameters_.ranges()[i];
    const Tensor& state = optimizer_.states()[i].*which;
    const Tensor target(state.shape(), state.dtype(), Device::cpu);
    for_each_run(parameter, range.first, range.count, [&](std::int64_t to, std::int64_t from, std::int64_t count) {
      for (std::int64_t k = 0; k < count; ++k) target.set(to + k, value_at(from + k));
    });
    state.copy_from(target);
  }
}

}  // namespace stretto
