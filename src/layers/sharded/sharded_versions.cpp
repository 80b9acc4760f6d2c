// ShardedParameters: older versions of the values, of a pipeline without a flush.
#include <algorithm>

#include "core/fail.hpp"
#include "layers/sharded/unit_cut.hpp"
#include "stretto/device.hpp"
#include "stretto/layers/sharded_parameters.hpp"

namespace stretto {

int ShardedParameters::place_of(int version) const {
  const int places = options_.versions - 1;
  return (version % places + places) % places;
}

Tensor ShardedParameters::older_value(const Range& range, int updates) const {
  const Tensor& whole = units_[range.unit]->version(place_of(made_ - updates))[places_[range.parameter].member];
  return whole.view(range.first, {range.count});
}

void ShardedParameters::share_older_values(std::size_t unit, int updates) {
  if (traffic_->is_whole(unit)) return;  // every rank writes all
  traffic_->wait_for_values();           // they travel over the same communicator, in another stream
  computation().wait(units_[unit]->gather_version(place_of(made_ - updates), computation()));
}

void ShardedParameters::begin_versions() {
  made_ = read_ = 0;
  if (options_.saves_versions && !in_flight_) {
    traffic_->wait_for_values();
    for (std::size_t unit = 0; unit < units_.size(); ++unit) {
      for (int place = 0; members_[unit].trainable && place + 1 < options_.versions; ++place) {
        units_[unit]->keep_version(place);
      }
    }
  }
  show_all();
}

void ShardedParameters::keep_version() {
  traffic_->wait_for_values();
  if (options_.versions > 1) {
    for (std::size_t unit = 0; unit < units_.size(); ++unit) {
      if (members_[unit].trainable) units_[unit]->keep_version(place_of(made_));
    }
  }
  ++made_;
}

void ShardedParameters::read_version(int version) {
  require(version <= made_ && version > made_ - std::max(options_.versions, 1),
          "Version {} of the weights is not there: {} is the latest of {} that are kept.", version, made_,
          options_.versions);
  read_ = version;
}

}  // namespace stretto
