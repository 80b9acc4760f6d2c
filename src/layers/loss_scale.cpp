#include "stretto/layers/loss_scale.hpp"

#include <cmath>

#include "core/fail.hpp"

namespace stretto {

void LossScale::Options::check() const {
  require(std::isfinite(initial) && initial > 0, "A loss cannot be scaled by {}; give a number above 0.", initial);
  require(window >= 1, "A loss scale cannot double after {} steps without overflow; give at least 1.", window);
}

LossScale::LossScale(const Options& options) : options_(options), state_{.scale = options.initial} { options.check(); }

bool LossScale::update(double norm) {
  if (std::isfinite(norm)) {
    state_.overflows = 0;
    if (!options_.fixed && ++state_.good_steps == options_.window) {
      state_.scale *= 2;
      state_.good_steps = 0;
    }
    return true;
  }
  ++state_.overflows;
  state_.good_steps = 0;
  if (!options_.fixed) state_.scale /= 2;
  return false;
}

void LossScale::restore(const State& state) {
  if (!options_.fixed) state_ = state;
}

}  // namespace stretto
