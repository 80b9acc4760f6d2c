#include "layers/optimizer/momentum_exchange.hpp"

#include <algorithm>

#include "core/parts.hpp"
#include "layers/optimizer/local_vectors.hpp"
#include "stretto/device.hpp"
#include "stretto/kernels.hpp"

namespace stretto {

MomentumExchange::MomentumExchange(ShardedParameters& parameters, double beta1, QuantizedFormat format)
    : parameters_(parameters), beta1_(beta1), format_(format), places_(parameters.parameters().all().size()) {
  const MemoryScope memory(MemoryKind::optimizer);
  const std::vector<LocalGradients>& vectors = parameters.local_gradients();
  for (std::size_t i = 0; i < vectors.size(); ++i) {
    const LocalGradients& its = vectors[i];
    for (const LocalGradients::Piece& piece : its.pieces) places_[piece.parameter] = {i, piece.first};
    const bool travels = its.group.size() > 1;
    // A rank alone has all of m in its slots.
    kept_.emplace_back(travels ? format : QuantizedFormat::none, its.group, travels ? its.vector.size() : 0,
                       its.vector.dtype());
    if (!travels || format == QuantizedFormat::none) continue;
    parameters.errors().state(unsent_momentum(its), Hop::contribution, its.vector.size());
    parameters.errors().state(unsent_momentum(its), Hop::result,
                              part_size(its.vector.size(), its.group.size(), its.group.rank()));
  }
}

void MomentumExchange::run(double gradient_scale, const Visit& visit) {
  const std::vector<LocalGradients>& vectors = parameters_.local_gradients();
  for (const LocalGradients& its : vectors) kernels::scale(its.vector, (1 - beta1_) * gradient_scale);
  const bool kept = std::ranges::all_of(vectors, [&](const LocalGradients& its) {
    return its.group.size() == 1 || kept_[static_cast<std::size_t>(&its - vectors.data())].has_value();
  });
  for (std::size_t i = 0; i < vectors.size() && kept; ++i) {
    if (vectors[i].group.size() > 1) kept_[i].add_to(vectors[i].vector, beta1_ / vectors[i].group.size());
  }
  add_slots(visit, !kept);
  for (std::size_t i = 0; i < vectors.size(); ++i) {
    const LocalGradients& its = vectors[i];
    if (its.group.size() == 1) continue;
    OperationOptions options{.tag = "momentum"};
    if (format_ != QuantizedFormat::none) {
      options.quantization.format = format_;
      options.quantization.errors = &parameters_.errors();
      options.quantization.tensor = unsent_momentum(its);
    }
    computation().wait(its.group.all_reduce(its.vector, ReduceOp::sum, computation(), options));
    kept_[i].keep(its.vector);
  }
  const auto set_slot = [&](const ShardedParameters::Range& range, const Optimizer::State& state) {
    const Place& place = places_[range.parameter];
    state.slots[0].copy_from(vectors[place.vector].vector.view(place.first + range.first, {range.count}));
  };
  visit(parameters_.trained_units(), set_slot, true);
}

// Adds beta1 m / N to the vectors by the owners' slots: of ranks alone, and of all if nothing is kept.
void MomentumExchange::add_slots(const Visit& visit, bool of_all) const {
  parameters_.wait_for_values();  // they travel over the same communicators, in another stream
  const std::vector<LocalGradients>& vectors = parameters_.local_gradients();
  for (const std::size_t u : parameters_.trained_units()) {
    const ShardedUnit& unit = parameters_.unit(u);
    if (unit.ranks() > 1 && !of_all) continue;
    const MemoryScope memory(MemoryKind::buffers);
    std::vector<std::size_t> parameters;  // by member
    for (const LocalGradients& its : vectors) {
      for (const LocalGradients::Piece& piece : its.pieces) {
        if (piece.unit != u) continue;
        parameters.resize(std::max(parameters.size(), piece.member + 1));
        parameters[piece.member] = piece.parameter;
      }
    }
    const Tensor share({unit.share().size()}, vectors[places_[parameters.front()].vector].vector.dtype());
    share.zero();
    std::int64_t at = 0;  // owned ranges follow each other in the share
    const auto add_slot = [&](const ShardedParameters::Range& range, const Optimizer::State& state) {
      if (!range.in_share) return;
      share.view(at, {range.count}).copy_from(state.slots[0]);
      at += range.count;
    };
    visit({u}, add_slot, false);
    const Tensor whole = unit.whole(share);
    kernels::scale(whole, beta1_ / unit.ranks());
    const std::vector<Tensor> members = unit.views_of(whole);
    for (std::size_t member = 0; member < members.size(); ++member) {
      const Place& place = places_[parameters[member]];
      const Tensor target = vectors[place.vector].vector.view(place.first, {members[member].size()});
      kernels::add(target, members[member], target);
    }
  }
}

void MomentumExchange::forget() {
  for (KeptMomentum& each : kept_) each.forget();
}

}  // namespace stretto
