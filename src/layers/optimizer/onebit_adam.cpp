#include "stretto/layers/onebit_adam.hpp"

#include <algorithm>
#include <cmath>

#include "core/fail.hpp"
#include "device/kernels/frozen_adamw.hpp"
#include "layers/note_number.hpp"
#include "layers/optimizer/adamw_step.hpp"
#include "layers/optimizer/local_vectors.hpp"
#include "layers/optimizer/momentum_exchange.hpp"
#include "stretto/device.hpp"
#include "stretto/kernels.hpp"

namespace stretto {
namespace {

constexpr const char* frozen_note = "onebit-adam frozen after";
constexpr const char* sum_note = "onebit-adam sum of v";

double correction(double beta, std::int64_t step) { return 1 - std::pow(beta, static_cast<double>(step)); }

double sum_of_elements(const Tensor& tensor) {
  const Tensor here = tensor.on(Device::cpu);
  const auto sum = [&]<class T>(const T* elements) {
    double result = 0;
    for (std::int64_t i = 0; i < here.size(); ++i) result += elements[i];
    return result;
  };
  return here.dtype() == DType::f64 ? sum(here.data<double>()) : sum(here.data<float>());
}

}  // namespace

OptimizerKind OneBitAdam::Options::kind() const {
  return {.name = "onebit-adam", .slots = {{"m"}, {"v"}}, .momentum_exchange = format};
}

void OneBitAdam::Options::check(const ShardedParameters::Options& sharding) const {
  require(beta1 >= 0 && beta1 < 1 && beta2 >= 0 && beta2 < 1,
          "1-bit Adam averages with beta1 {} and beta2 {}; give 0 or more, below 1.", beta1, beta2);
  require(freeze_step >= 0, "v cannot be frozen after {} steps; give 1 or more, or 0 to freeze it when it hardly moves.",
          freeze_step);
  require(stable_ratio > 0 && stable_ratio <= 1, "v is stable at a ratio from 0 to 1, not at {}; 0.96 is usual.",
          stable_ratio);
  require(clip_norm >= 0, "The momentum cannot be clipped to a norm of {}; give 0 or more.", clip_norm);
  require(format == QuantizedFormat::onebit || format == QuantizedFormat::none,
          "1-bit Adam sends its momentum in onebit, or as it is in none, and not in {}.", name(format));
  check_own_gradients("1-bit Adam", sharding);
  require(format == QuantizedFormat::none || sharding.dtype != DType::f64,
          "1-bit Adam sends momentum of 32 bits in one, and values of {} have momentum of 64; give a type of 32 or 16 bits.",
          training_name(sharding.dtype));
}

double OneBitAdam::Options::ratio_limit() const {
  if (!limits_ratio || beta1 * beta1 >= beta2) return 0;
  return (1 - beta1) / std::sqrt((1 - beta2) * (1 - beta1 * beta1 / beta2));
}

OneBitAdam::OneBitAdam(ShardedParameters& parameters, const Options& options)
    : Optimizer(parameters, options.kind()), parameters_(parameters), options_(options) {
  options.check(parameters.options());
  require(current_device() == Device::cpu, "1-bit Adam runs on the host; choose another optimizer on a GPU.");
}

OneBitAdam::~OneBitAdam() = default;

void OneBitAdam::prepare(const Step& step) {
  if (!frozen_after_) return;
  exchange_->run(step.gradient_scale,
                 [this](const auto& units, const auto& action, bool writes) { visit(units, action, writes); });
  factor_ = 1;
  if (options_.clip_norm == 0) return;
  const double squares = sum_over_owned([](const State& state) { return kernels::sum_of_squares(state.slots[0]); });
  const double norm = std::sqrt(squares) / correction(options_.beta1, *frozen_after_);
  if (norm > options_.clip_norm) factor_ = options_.clip_norm / norm;
}

void OneBitAdam::update(const ShardedParameters::Range& range, const Parameter& parameter, const State& state,
                        const Step& step) {
  if (!frozen_after_) return update_by_adamw(options_, range, parameter, state, step);
  const kernels::FrozenAdamWStep frozen{.lr = step.lr,
                                        .epsilon = options_.epsilon,
                                        .weight_decay = parameter.decays ? options_.weight_decay : 0,
                                        .correction1 = correction(options_.beta1, *frozen_after_),
                                        .correction2 = correction(options_.beta2, *frozen_after_),
                                        .limit = options_.ratio_limit(),
                                        .factor = factor_};
  kernels::frozen_adamw(frozen, state.master, state.slots[0], state.slots[1], range.value);
}

void OneBitAdam::finished(const Step& step) {
  if (frozen_after_) return;
  const bool ends = options_.freeze_step > 0 ? step.number >= options_.freeze_step : is_stable(step.number);
  if (ends) freeze(step.number);
}

bool OneBitAdam::is_stable(std::int64_t step) {
  const auto every = std::max<std::int64_t>(1, std::llround(1 / (1 - options_.beta2)));
  if (step % every != 0) return false;
  const double sum =
      sum_over_owned([](const State& state) { return sum_of_elements(state.slots[1]); }) / correction(options_.beta2, step);
  const bool stable = sum_of_v_ && *sum_of_v_ > 0 && sum / *sum_of_v_ >= options_.stable_ratio;
  sum_of_v_ = sum;
  return stable;
}

// All ranks add the same numbers in the same order, and so decide alike.
double OneBitAdam::sum_over_owned(double (*of)(const State& state)) {
  double sum = 0;
  const auto add = [&](const ShardedParameters::Range& range, const State& state) {
    if (range.owned) sum += of(state);
  };
  visit(parameters_.trained_units(), add, false);
  const Communicator& world = parameters_.mesh().world();
  if (world.size() > 1) {
    world.all_reduce(&sum, &sum, 1, DType::f64, ReduceOp::sum, Stream::inline_(), {.tag = "optimizer"}).wait();
  }
  return sum;
}

void OneBitAdam::freeze(std::int64_t step) {
  frozen_after_ = step;
  parameters_.keep_gradients_local(true);
  exchange_ = std::make_unique<MomentumExchange>(parameters_, options_.beta1, options_.format);
}

void OneBitAdam::thaw() {
  if (!frozen_after_) return;
  frozen_after_.reset();
  exchange_.reset();
  parameters_.keep_gradients_local(false);
  parameters_.errors().clear();
}

std::map<std::string, std::string> OneBitAdam::notes() const {
  std::map<std::string, std::string> notes;
  if (frozen_after_) notes[frozen_note] = fmt::format("{}", *frozen_after_);
  if (sum_of_v_) notes[sum_note] = fmt::format("{}", *sum_of_v_);
  return notes;
}

void OneBitAdam::read_notes(const std::map<std::string, std::string>& notes) {
  thaw();
  sum_of_v_.reset();
  if (notes.contains(sum_note)) sum_of_v_ = number_of<double>(notes, sum_note, 0);
  const std::int64_t frozen_after = number_of<std::int64_t>(notes, frozen_note, 0);
  if (frozen_after > 0) freeze(frozen_after);
}

void OneBitAdam::restored() {
  if (exchange_) exchange_->forget();
}

}  // namespace stretto
