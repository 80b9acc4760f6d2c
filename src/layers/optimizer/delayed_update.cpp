#include "stretto/layers/delayed_update.hpp"

#include "core/fail.hpp"

namespace stretto {

DelayedUpdate::DelayedUpdate(ShardedParameters& parameters, Optimizer& optimizer)
    : parameters_(parameters), optimizer_(optimizer), group_(parameters.mesh().world().duplicate("norm of late gradients")) {
  require(parameters.options().updates_behind(),
          "An update behind computation takes late gradients and state in a file; give a delay of 1, a directory for the "
          "optimizer's state, and overlap.");
  optimizer.make_apart(parameters.update_order());
}

void DelayedUpdate::begin(double lr, const GradientScale& gradient_scale) {
  parameters_.traffic().wait_for_late_sums(stream_);
  done_ = stream_.enqueue([this, lr, gradient_scale, order = parameters_.update_order()] {
    norm_ = gradient_norm(parameters_, group_);
    const std::optional<double> scale = gradient_scale(norm_);
    if (!scale) return;
    optimizer_.begin_apart(order, lr, *scale);
    for (const std::size_t unit : order) optimizer_.update_apart(unit);
  });
}

double DelayedUpdate::finish() {
  done_.wait();
  return norm_;
}

void DelayedUpdate::show() { optimizer_.show_apart(); }

}  // namespace stretto
