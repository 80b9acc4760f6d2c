#include "stretto/layers/loss_scale.hpp"

#include <algorithm>
#include <cmath>

#include "core/fail.hpp"
#include "layers/note_number.hpp"

namespace stretto {
namespace {

constexpr double largest = 0x1p40;  // far beyond the range of f16, within that of f32

}  // namespace

void LossScale::Options::check() const {
  require(std::isfinite(initial) && initial > 0, "A loss cannot be scaled by {}; give a number above 0.", initial);
  require(window >= 1, "A loss scale cannot double after {} steps without overflow; give at least 1.", window);
}

LossScale::LossScale(const Options& options) : options_(options), scale_(options.initial) { options.check(); }

bool LossScale::update(double norm) {
  if (std::isfinite(norm)) {
    overflows_ = 0;
    if (!options_.fixed && ++good_steps_ >= options_.window) {
      scale_ = std::min(2 * scale_, largest);
      good_steps_ = 0;
    }
    return true;
  }
  ++overflows_;
  good_steps_ = 0;
  if (!options_.fixed) scale_ /= 2;
  return false;
}

std::map<std::string, std::string> LossScale::notes() const {
  return {{"loss_scale", fmt::format("{}", scale_)},
          {"loss_scale_good_steps", fmt::format("{}", good_steps_)},
          {"loss_scale_overflows", fmt::format("{}", overflows_)}};
}

void LossScale::restore(const std::map<std::string, std::string>& notes) {
  if (options_.fixed) return;
  const double scale = number_of(notes, "loss_scale", scale_);
  const std::int64_t good_steps = number_of(notes, "loss_scale_good_steps", good_steps_);
  const std::int64_t overflows = number_of(notes, "loss_scale_overflows", overflows_);
  if (!std::isfinite(scale) || scale <= 0 || good_steps < 0 || overflows < 0) {
    fail(ErrorCode::io, "A checkpoint says that the loss scale is {} after {} good steps and {} overflows, which cannot be.",
         scale, good_steps, overflows);
  }
  scale_ = scale;
  good_steps_ = good_steps;
  overflows_ = overflows;
}

}  // namespace stretto
