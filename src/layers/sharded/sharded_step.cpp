// ShardedParameters: a step, from the uses of parameters over their sums to the update.
#include <algorithm>
#include <utility>

#include "core/fail.hpp"
#include "layers/optimizer/matrices/powersgd.hpp"
#include "layers/sharded/unit_cut.hpp"
#include "overlap/offload/offloaded_unit.hpp"
#include "overlap/postponement_choice.hpp"
#include "stretto/kernels.hpp"
#include "stretto/layers/sharded_parameters.hpp"

namespace stretto {

void ShardedParameters::index_uses() {
  for (const auto& used : parameters_.used()) {
    std::vector<std::size_t>& units = units_of_use_.emplace_back();
    for (const Parameter* parameter : used->parameters) {
      const std::size_t unit = places_[parameter->index].unit;
      if (std::find(units.begin(), units.end(), unit) == units.end()) units.push_back(unit);
    }
  }
}

const std::vector<std::size_t>& ShardedParameters::units_of(const UsedParameters& used) const {
  require(
      used.index < units_of_use_.size() && parameters_.used()[used.index].get() == &used,
      "A use of parameter {} has a handle that was made after these parameters were sharded, or of other parameters; make "
      "it with the layer (Parameters::used_together).",
      used.parameters.empty() ? "" : used.parameters.front()->name);
  return units_of_use_[used.index];
}

void ShardedParameters::begin(const UsedParameters& used, Pass pass) {
  for (const std::size_t unit : units_of(used)) {
    traffic_->begin_use(unit, pass, microbatch_);
    show(unit);
  }
}

void ShardedParameters::end(const UsedParameters& used, Pass /*pass*/) {
  for (const std::size_t unit : units_of(used)) {
    traffic_->end_use(unit);
    show(unit);
  }
}

void ShardedParameters::learn(const std::function<void()>& step) {
  traffic_->learn(step);
  show_all();
}

// The gradients of the last step become those that an update takes, and its former ones are added to next.
void ShardedParameters::exchange_gradients() {
  if (gradients_file_ && options_.delay > 0) gradients_file_->exchange();
  for (const auto& unit : units_) unit->exchange_gradients();
  for (Range& range : ranges_) std::swap(range.gradient, range.late);
  sums_arrived_ = std::exchange(has_late_, false);
  shown_.assign(units_.size(), std::nullopt);  // since gradients lie elsewhere
  show_all();
}

void ShardedParameters::take_late() {
  traffic_->wait_for_sums();
  exchange_gradients();
}

void ShardedParameters::square_sums(const Stream& stream, double& squares) const {
  std::vector<Tensor> gradients;  // the ranges refer to others when the next step begins
  for (const Range& range : ranges_) {
    if (range.owned && range.late) gradients.push_back(range.late);
  }
  for (std::size_t unit = 0; unit < units_.size(); ++unit) traffic_->wait_for_sum(unit, stream);
  stream.enqueue([gradients = std::move(gradients), &squares] {
    squares = 0;
    for (const double each : kernels::sums_of_squares(gradients)) squares += each;
  });
}

void ShardedParameters::take_sums() {
  if (has_late_) return take_late();
  traffic_->wait_for_late_sums(computation());
}

void ShardedParameters::begin_step() {
  if (choice_) choice_->begin_step();
  sums_arrived_ = false;
  if (options_.delay > 0) exchange_gradients();
  if (values_file_) values_file_->release();
  traffic_->begin_step();
}

void ShardedParameters::end_microbatch() {
  traffic_->end_microbatch();
  show_all();
}

void ShardedParameters::finish_sums() {
  if (choice_) choice_->computed();
  traffic_->finish_sums();
  if (!std::exchange(uses_are_checked_, true)) check_uses();
  if (powersgd_) powersgd_->sum();
  show_all();
  if (options_.delay > 0) {
    has_late_ = true;
  } else {
    sums_arrived_ = true;
  }
}

// After the first step: what layers have added to a gradient outside a use stays on the rank.
void ShardedParameters::check_uses() const {
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    if (traffic_->adds_gradients_to(unit) || !units_[unit]->has_gradients()) continue;
    for (const std::size_t member : members_[unit].parameters) {
      const Parameter& parameter = *parameters_.all()[member];
      require(
          kernels::sum_of_squares(parameter.gradient) == 0,
          "A layer has added to the gradient of parameter {} without a use of it in backward, so that ranks do not sum it; "
          "let the layer hold an InUse of it meanwhile.",
          parameter.name);
    }
  }
}

const std::vector<std::size_t>& ShardedParameters::ranges_to_update(std::size_t unit) const {
  return traffic_->is_whole(unit) ? ranges_of_[unit].all : ranges_of_[unit].in_share;
}

void ShardedParameters::update(const std::function<void(std::size_t unit)>& update, bool reads_gradients) {
  if (powersgd_) powersgd_->taken();
  if (choice_) choice_->update_begins();
  const std::vector<std::size_t> order = update_order();
  UnitFile* const gradients = reads_gradients ? gradients_file_.get() : nullptr;
  if (gradients != nullptr && options_.delay > 0) gradients->exchange();  // an update takes those of the step before
  for (UnitFile* const file : {values_file_.get(), gradients}) {
    if (file != nullptr) file->begin(order);
  }
  for (const std::size_t unit : order) {
    take_from_files(unit, gradients);
    update(unit);
    give_back_to_files(unit, gradients);
    traffic_->updated(unit);
  }
  if (gradients != nullptr && options_.delay > 0) gradients->exchange();
  if (values_file_) values_file_->end();
  if (choice_ && choice_->end_step(*traffic_)) choice_.reset();
}

std::vector<std::size_t> ShardedParameters::trained_units() const {
  std::vector<std::size_t> units;
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    if (members_[unit].trainable) units.push_back(unit);
  }
  return units;
}

// Units whose values travel come first: they travel while the others are updated.
std::vector<std::size_t> ShardedParameters::update_order() const {
  std::vector<std::size_t> order;
  for (const bool whole : {false, true}) {
    for (const std::size_t unit : traffic_->forward_order()) {
      if (traffic_->is_whole(unit) == whole && members_[unit].trainable) order.push_back(unit);
    }
  }
  return order;
}

}  // namespace stretto
