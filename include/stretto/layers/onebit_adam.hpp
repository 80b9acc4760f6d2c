#pragma once
#include <memory>
#include <optional>

#include "stretto/layers/optimizer.hpp"

namespace stretto {

class MomentumExchange;

// 1-bit Adam (Tang et al. 2021), for slow links. For the first steps it is AdamW, bit for bit, with its bias corrections
// (DeepSpeed's OneBitAdam has none). Then v is frozen, and ranks no longer sum gradients: rank i of N computes its own share
// of the momentum, x_i = beta1 m / N + (1 - beta1) g_i with its own gradient g_i, and m <- sum of x_i travels in one bit an
// element, in one all-reduce over all parameters whose gradients the same ranks sum. What rounding loses is kept twice,
// where a rank quantizes its x_i and where the owner of a part quantizes the sum, and is added the next time. Then
//
//   w <- w - lr (r + weight_decay w),  r = (m / c1) / (sqrt(v / c2) + epsilon)
//
// with the bias corrections c1 and c2 of the step of the freeze, which stay. All ranks have the same m, and so the same
// weights at ZeRO stages 0, 1 and 2.
//
// - Where v is 0 at the freeze, such as in rows of an embedding that no token has used, r is 0 until the run ends: m has no
//   scale there. Weight decay goes on.
// - One bit gives all elements of a group of 1024 one magnitude, which may be far above sqrt(v) of a rare one. Therefore r
//   is cut off at the largest ratio that AdamW itself can reach, (1 - beta1) / sqrt((1 - beta2) (1 - beta1^2 / beta2)), if
//   beta1^2 < beta2: 1.16 with the defaults (Options::limits_ratio).
// - Clipping: before the freeze the caller clips gradients. After it nobody has the gradient's norm; clips_gradients() is
//   false, and the optimizer scales r where the norm of m / c1 over the whole model is above Options::clip_norm. m stays as
//   it is.
// - gradient_norm() must be finite, or the caller must leave the step out: a NaN would stay in m and in the errors.
//
// With tensor parallelism, parameters of which ranks hold copies have an all-reduce of their own, so that copies stay equal.
// A rank without others to sum with neither sends nor rounds. Values must be f32, bf16 or f16, in host memory, and at
// ZeroStage::none every unit should be whole (ShardedParameters::Options::measured_steps of 0): others' values travel on.
// Memory after the freeze, of the Psi elements of a rank and beside the 8 bytes of AdamW's state: 4 Psi for the rank's own
// gradients and 4 Psi + 4 Psi/N for the errors, and 0.13 Psi for m, of which each rank needs the whole.
class STRETTO_API OneBitAdam : public Optimizer {
 public:
  struct STRETTO_API Options {
    double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, weight_decay = 0.1;
    // The number of steps of AdamW, at least 1. 0: v is frozen when it hardly moves. Every D = 1/(1 - beta2) steps the sum
    // of v / c2 over the whole model is divided by that of D steps before; at `stable_ratio` or more, v is frozen. (The
    // paper divides the sums of v. These grow from 0 whatever gradients do; v / c2 does not.)
    std::int64_t freeze_step = 0;
    double stable_ratio = 0.96;
    double clip_norm = 0;  // after the freeze; 0: no clipping
    bool limits_ratio = true;
    // onebit; or none: momentum travels as it is, for comparisons.
    QuantizedFormat format = QuantizedFormat::onebit;

    OptimizerKind kind() const;
    // Throws Error(invalid_argument), in one sentence, for options that cannot be, also together with those of `sharding`.
    void check(const ShardedParameters::Options& sharding) const;
    double ratio_limit() const;  // of r; 0: none
  };
  OneBitAdam(ShardedParameters& parameters, const Options& options);
  ~OneBitAdam() override;

  // The number of steps after which v was frozen, if it is.
  std::optional<std::int64_t> frozen_after() const { return frozen_after_; }

  bool clips_gradients() const override { return !frozen_after_; }
  std::map<std::string, std::string> notes() const override;
  // A checkpoint says when v was frozen; Options::freeze_step no longer matters then.
  void read_notes(const std::map<std::string, std::string>& notes) override;

 private:
  void prepare(const Step& step) override;
  void update(const ShardedParameters::Range& range, const Parameter& parameter, const State& state,
              const Step& step) override;
  void finished(const Step& step) override;
  void restored() override;

  bool is_stable(std::int64_t step);
  void freeze(std::int64_t step);
  void thaw();
  // The sum, over the owned elements of all ranks, of a number that each range of states has.
  double sum_over_owned(double (*of)(const State& state));

  ShardedParameters& parameters_;
  Options options_;
  std::optional<std::int64_t> frozen_after_;
  std::optional<double> sum_of_v_;  // D steps ago, or less
  std::unique_ptr<MomentumExchange> exchange_;
  double factor_ = 1;  // of this step's update: clipping
};

}  // namespace stretto
