// ShardedParameters: initial values, values that ranks share, and whole ones for checks and exports.
#include "stretto/device.hpp"
#include "stretto/layers/sharded_parameters.hpp"

namespace stretto {

void ShardedParameters::initialise(std::uint64_t seed) {
  traffic_->wait_for_values();
  for (const auto& unit : units_) unit->share_changed();
  for (std::size_t i = 0; i < places_.size(); ++i) {
    if (!parameters_.all()[i]->is_here) continue;
    const ShardedUnit& unit = *units_[places_[i].unit];
    if (unit.has_values()) set_initial_values(*parameters_.all()[i], seed, 0, unit.values()[places_[i].member]);
  }
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    if (units_[unit]->has_values()) continue;
    for (const std::size_t i : ranges_of_[unit].all) {
      set_initial_values(*parameters_.all()[ranges_[i].parameter], seed, ranges_[i].first, ranges_[i].value);
    }
    release(unit);
  }
}

void ShardedParameters::share_values() {
  if (is_served()) meet_at_servers_values();
  for (std::size_t unit = 0; unit < units_.size(); ++unit) share_values(unit);
}

void ShardedParameters::share_values(std::size_t unit) {
  traffic_->wait_for_values();
  units_[unit]->share_changed();
  if (units_[unit]->has_values()) computation().wait(units_[unit]->gather(computation()));
}

void ShardedParameters::share(std::size_t unit, const std::function<Tensor(std::size_t range)>& of_range) {
  ShardedUnit& of = *units_[unit];
  if (of.ranks() == 1 || ranges_of_[unit].all.empty()) return;
  traffic_->wait_for_values();
  const DType dtype = of_range(ranges_of_[unit].all.front()).dtype();
  const MemoryScope buffers(MemoryKind::buffers);
  const Tensor own = Tensor::zeros({of.padded_elements() / of.ranks()}, dtype);
  std::int64_t first = 0;  // owned ranges follow each other in the share
  for (const std::size_t i : ranges_of_[unit].in_share) {
    own.view(first, {ranges_[i].count}).copy_from(of_range(i));
    first += ranges_[i].count;
  }
  const std::vector<Tensor> whole = of.views_of(of.whole(own));
  for (const std::size_t i : ranges_of_[unit].all) {
    if (ranges_[i].in_share) continue;
    of_range(i).copy_from(whole[places_[ranges_[i].parameter].member].view(ranges_[i].first, {ranges_[i].count}));
  }
}

std::vector<Tensor> ShardedParameters::whole(const std::function<Tensor(const ShardedUnit&)>& own) const {
  traffic_->wait_for_values();  // they travel over the same communicator, in another stream
  std::vector<std::vector<Tensor>> by_unit;
  for (const auto& unit : units_) {
    const Tensor its = own(*unit);
    by_unit.push_back(its ? unit->views_of(unit->whole(its)) : std::vector<Tensor>(unit->shapes().size()));
  }
  std::vector<Tensor> result;
  for (std::size_t i = 0; i < places_.size(); ++i) {
    result.push_back(parameters_.all()[i]->is_here ? by_unit[places_[i].unit][places_[i].member] : Tensor());
  }
  return result;
}

std::vector<Tensor> ShardedParameters::whole_values() const {
  return whole([](const ShardedUnit& unit) { return unit.share(); });
}

std::vector<Tensor> ShardedParameters::whole_gradients() const {
  const bool late = options_.delay > 0;
  return whole([&](const ShardedUnit& unit) { return late ? unit.earlier_gradient_share() : unit.gradient_share(); });
}

}  // namespace stretto
