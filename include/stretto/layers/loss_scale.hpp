#pragma once
#include <cstdint>
#include <map>
#include <string>

#include "stretto/export.hpp"

namespace stretto {

// Loss scaling for training in f16 (Micikevicius et al. 2018): the loss is multiplied by a scale, so that small gradients do
// not vanish in 16 bits, and gradients are divided by it before they are used. A step whose gradients overflow is left out.
//
//   const double factor = scale.value();
//   ... backward, from the loss's gradient times the factor ...
//   const double norm = gradient_norm(sharded) / factor;
//   if (scale.update(norm)) optimizer.step(lr, 1 / factor);
//
// All ranks decide alike, because they pass the same norm: an infinity or a NaN in one rank's gradients makes the norm of
// the whole gradient infinite or NaN. So the decision costs no further communication.
class STRETTO_API LossScale {
 public:
  struct Options {
    double initial = 65536;      // the scale of the first step
    std::int64_t window = 1000;  // after so many steps without overflow in a row the scale doubles
    bool fixed = false;          // the scale stays as it is; steps that overflow are left out nevertheless

    void check() const;  // throws Error(invalid_argument) unless initial is finite and above 0, and window at least 1
  };
  LossScale() : LossScale(Options{.initial = 1, .fixed = true}) {}  // none
  explicit LossScale(const Options& options);

  double value() const { return scale_; }
  // The norm of a step's gradients, scaled or not. Returns whether the step is made: if the norm is infinite or NaN, it is
  // not, and the scale is halved. The scale never exceeds 2^40.
  bool update(double norm);
  // Whether the last steps were all left out, so many of them that training should stop.
  bool hopeless() const { return overflows_ >= most_overflows; }
  static constexpr int most_overflows = 20;

  // For checkpoints (save_checkpoint): "loss_scale", and how many steps in a row were good or left out.
  std::map<std::string, std::string> notes() const;
  // Goes on from such notes; without them, or if the scale is fixed, nothing changes. Throws Error(io) for notes that
  // cannot be such numbers.
  void restore(const std::map<std::string, std::string>& notes);

 private:
  Options options_;
  double scale_ = 1;
  std::int64_t good_steps_ = 0;  // in a row, since the scale changed
  std::int64_t overflows_ = 0;   // in a row
};

}  // namespace stretto
