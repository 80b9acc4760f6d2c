#include "stretto/layers/speculative_update.hpp"

#include <utility>

#include "core/fail.hpp"

namespace stretto {

SpeculativeUpdate::SpeculativeUpdate(ShardedParameters& parameters, Optimizer& optimizer)
    : parameters_(parameters), optimizer_(optimizer), updates_(parameters.unit_count()) {
  require(parameters.options().offload.speculates && can_update(optimizer.kind()),
          "Optimizer {} does not update before the norm is known; give one that updates each element by itself, and "
          "speculation with its state in a file.",
          optimizer.kind().name);
  require(optimizer.kind().state_bytes(parameters.options().dtype) > 0,
          "Optimizer {} keeps no state that a file could hold, so that no update begins before the norm is known; leave "
          "speculation out.",
          to_string(optimizer.kind()));
  optimizer.make_apart(optimizer.in_file(parameters.update_order()));
  parameters.traffic().on_last_sum([this](std::size_t unit) { update_behind_sum(unit); });
}

SpeculativeUpdate::~SpeculativeUpdate() { parameters_.traffic().on_last_sum({}); }

void SpeculativeUpdate::begin(double lr, double gradient_scale) {
  const std::vector<std::size_t> order = optimizer_.in_file(parameters_.traffic().sum_order());
  has_begun_ = false;
  for (const std::size_t unit : order) updates_[unit] = true;
  optimizer_.begin_apart(order, lr, gradient_scale, true);
}

void SpeculativeUpdate::update_behind_sum(std::size_t unit) {
  if (!updates_[unit]) return;
  updates_[unit] = false;
  parameters_.traffic().wait_for_sum(unit, stream_);
  has_begun_ = true;
  last_ = stream_.enqueue([this, unit] { optimizer_.update_apart(unit); });
}

void SpeculativeUpdate::keep() {
  std::exchange(last_, {}).wait();
  optimizer_.show_apart();
}

void SpeculativeUpdate::take_back() {
  std::exchange(last_, {}).wait();
  optimizer_.drop_apart();
  if (has_begun_) ++taken_back_;
}

}  // namespace stretto
