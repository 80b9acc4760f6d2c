#include "stretto/overlap/unit_traffic.hpp"

#include <algorithm>
#include <exception>
#include <utility>

#include "core/fail.hpp"
#include "core/log.hpp"
#include "device/memory/range.hpp"
#include "device/rehearsal_mode.hpp"
#include "device/stream/place_in_computation.hpp"
#include "stretto/device.hpp"

namespace stretto {
namespace {

double seconds_of(const Work& work) { return work.times().done - work.times().started; }

}  // namespace

const char* name(Pass pass) {
  switch (pass) {
    case Pass::forward: return "forward";
    case Pass::backward: return "backward";
    case Pass::backward_input: return "backward_input";
    case Pass::backward_weight: return "backward_weight";
  }
  return "unknown";
}

UnitTraffic::UnitTraffic(const std::vector<ShardedUnit*>& units, Stream gathers, Stream sums, const Options& options)
    : gathers_(options.overlap ? std::move(gathers) : computation()),
      sums_(options.overlap ? std::move(sums) : computation()),
      options_(options) {
  require(options.prefetch >= 0, "Parameters cannot be prefetched {} units ahead; give 0 or more.", options.prefetch);
  for (const std::size_t unit : options.summed_last) {
    require(unit < units.size() && units[unit]->stage() < ZeroStage::gradients,
            "Unit {} of {} cannot be summed last, unless it keeps its gradients.", unit, units.size());
  }
  if (!options.overlap) options_.prefetch = 0;
  for (ShardedUnit* const unit : units) {
    units_.push_back({.unit = unit});
    whole_.push_back(unit->stage() == ZeroStage::none);
  }
}

UnitTraffic::~UnitTraffic() {
  for (const State& state : units_) {
    for (const Work& work : {state.gathered, state.summed, state.whole_gradients}) {
      try {
        computation().wait(work);
      } catch (const std::exception& error) {
        log().debug("An operation of a unit of parameters that nobody waited for has failed: {}", error.what());
      }
    }
  }
}

void UnitTraffic::learn(const std::function<void()>& step) {
  require(!in_step_ && !knows_order_, "The order of uses can be learned before the first step only, and once.");
  const RehearsalModeScope skips({.skip_kernels = true, .skip_communication = true});
  in_step_ = learning_ = true;
  next_ = 0;
  step();
  learn_sums(ZeroStage::none);
  in_step_ = learning_ = false;
  learn_order();
  for (const std::size_t unit : options_.summed_last) units_[unit].has_gradients = false;
  for (State& state : units_) state.needed = {};
}

void UnitTraffic::begin_step() {
  require(!in_step_, "A step has begun already, of which {} uses have been made; finish its sums first.", next_);
  in_step_ = true;
  next_ = 0;
  for (State& state : units_) {
    state.unit->zero_gradients();
    state.needed = {};
  }
  gather_ahead();
}

void UnitTraffic::begin_use(std::size_t unit, Pass pass) {
  require(unit < units_.size(), "There is no unit {} among {}.", unit, units_.size());
  State& state = units_[unit];
  if (in_step_) {
    if (!knows_order_) {
      uses_.push_back({unit, pass});
    } else {
      require(next_ < uses_.size(), "Unit {} is used for {} after the last of the {} uses of a step.", unit, name(pass),
              uses_.size());
      const Use& expected = uses_[next_];
      require(expected.unit == unit && expected.pass == pass,
              "Unit {} is used for {} as number {} of a step's {} uses, where unit {} for {} comes.", unit, name(pass),
              next_, uses_.size(), expected.unit, name(expected.pass));
    }
    if (!state.needed.state()) state.needed = place_in_computation();
    if (reads_values(pass)) state.latest_read = next_;
    if (adds_gradients(pass)) state.latest_backward = next_;
    ++next_;
  }
  ++state.in_use;
  if (reads_values(pass)) {
    state.reading = true;
    if (!state.unit->has_values()) gather(state);
    gather_ahead();
    arrive(state);
  }
  if (adds_gradients(pass)) {
    if (!state.unit->has_gradients()) limit_sums();
    state.unit->gradients();
    state.has_gradients = true;
  }
}

void UnitTraffic::end_use(std::size_t unit) {
  require(unit < units_.size() && units_[unit].in_use > 0, "Unit {} of {} is not in use, or does not exist.", unit,
          units_.size());
  State& state = units_[unit];
  if (--state.in_use > 0) return;
  const bool follows_order = in_step_ && knows_order_;
  if (follows_order && state.has_gradients && uses_[state.latest_backward].sums) start_sum(unit);
  if (learning_) state.unit->discard_gradients();
  // What was prefetched for a later use outlasts one that has not read it.
  if (std::exchange(state.reading, false) && !keeps_values(state)) {
    const std::vector<std::size_t> next =
        follows_order ? next_units(std::max(options_.prefetch, 1)) : std::vector<std::size_t>();
    const bool stays = follows_order && options_.keep_through_step && !uses_[state.latest_read].last;
    if (!stays && std::find(next.begin(), next.end(), unit) == next.end()) state.unit->release();
  }
}

void UnitTraffic::end_microbatch() {
  require(in_step_, "A microbatch ends outside a step; call begin_step() first.");
  if (!knows_order_) learn_sums(ZeroStage::gradients);
}

void UnitTraffic::finish_sums() {
  require(in_step_, "A step ends that has not begun; call begin_step() first.");
  const auto used = std::find_if(units_.begin(), units_.end(), [](const State& state) { return state.in_use > 0; });
  require(used == units_.end(), "Unit {} is still in use where the step ends.", used - units_.begin());
  require(!knows_order_ || next_ == uses_.size(), "A step ends after {} uses of units, but has {}.", next_, uses_.size());
  const ProfilerRange range([] { return "sums of gradients are waited for"; });
  if (!knows_order_) learn_sums(ZeroStage::none);
  for (const std::size_t unit : options_.summed_last) start_sum(unit);
  for (const State& state : units_) {
    state.unit->zero_unset();  // of units that were not used
    computation().wait(state.summed);
    computation().wait(state.whole_gradients);
  }
  in_flight_.clear();
  in_step_ = false;
  if (!knows_order_) learn_order();
}

void UnitTraffic::learn_order() {
  knows_order_ = !uses_.empty();
  std::vector<bool> seen(units_.size(), false);
  for (auto use = uses_.rbegin(); use != uses_.rend(); ++use) {
    if (!reads_values(use->pass)) continue;
    use->last = !seen[use->unit];
    seen[use->unit] = true;
  }
}

bool UnitTraffic::is_summed_last(std::size_t unit) const {
  return std::find(options_.summed_last.begin(), options_.summed_last.end(), unit) != options_.summed_last.end();
}

// Gradients of units from a stage on are complete if they have been added to. Their sums start now; in later steps, when the
// same use has ended.
void UnitTraffic::learn_sums(ZeroStage from) {
  std::vector<std::size_t> complete;
  for (std::size_t i = 0; i < units_.size(); ++i) {
    if (units_[i].has_gradients && units_[i].unit->stage() >= from && !is_summed_last(i)) complete.push_back(i);
  }
  std::sort(complete.begin(), complete.end(),
            [&](std::size_t a, std::size_t b) { return units_[a].latest_backward < units_[b].latest_backward; });
  for (const std::size_t unit : complete) {
    uses_[units_[unit].latest_backward].sums = true;
    if (learning_) {
      units_[unit].has_gradients = false;
    } else {
      start_sum(unit);
    }
  }
}

void UnitTraffic::start_sum(std::size_t unit) {
  const ProfilerRange range([&] { return fmt::format("gradients of unit {} are summed", unit); });
  State& state = units_[unit];
  state.ready = place_in_computation();
  state.summed = state.unit->sum(sums_);
  state.has_gradients = false;
  if (whole_[unit]) state.whole_gradients = state.unit->gather_gradients(sums_);
  in_flight_.push_back(unit);
}

// From ZeroStage::gradients on, a sum holds the memory of its whole unit until it is done.
void UnitTraffic::limit_sums() {
  while (in_flight_.size() > static_cast<std::size_t>(options_.prefetch)) {
    computation().wait(units_[in_flight_.front()].summed);
    in_flight_.erase(in_flight_.begin());
  }
}

// ---- values

void UnitTraffic::updated(std::size_t unit) {
  State& state = units_[unit];
  state.unit->share_changed();
  if (keeps_values(state) && !whole_[unit]) gather(state);
}

void UnitTraffic::wait_for_values() {
  for (State& state : units_) arrive(state);
}

void UnitTraffic::gather(State& state) {
  const ProfilerRange range([&] { return fmt::format("values of unit {} are gathered", &state - units_.data()); });
  arrive(state);
  state.gathered = state.unit->gather(gathers_);
  state.arriving = true;
}

void UnitTraffic::arrive(State& state) {
  if (state.arriving) computation().wait(state.gathered);
  state.arriving = false;
}

void UnitTraffic::gather_ahead() {
  if (!in_step_ || !knows_order_) return;
  for (const std::size_t unit : next_units(options_.prefetch)) {
    if (!units_[unit].unit->has_values()) gather(units_[unit]);
  }
}

// The next units whose values will be read, and are not being read now.
std::vector<std::size_t> UnitTraffic::next_units(int count) const {
  std::vector<std::size_t> result;
  for (std::size_t i = next_; i < uses_.size() && static_cast<int>(result.size()) < count; ++i) {
    const std::size_t unit = uses_[i].unit;
    if (reads_values(uses_[i].pass) && !units_[unit].reading &&
        std::find(result.begin(), result.end(), unit) == result.end()) {
      result.push_back(unit);
    }
  }
  return result;
}

// ---- what the caller may ask and choose

void UnitTraffic::set_whole(std::vector<bool> units) {
  require(!in_step_ && units.size() == units_.size(),
          "{} flags say which of {} units are whole; give one for each, between two steps.", units.size(), units_.size());
  for (std::size_t i = 0; i < units.size(); ++i) {
    require(whole_[i] || !units[i], "Unit {} was updated by share and cannot become whole: other ranks have its state.", i);
  }
  whole_ = std::move(units);
}

std::vector<std::size_t> UnitTraffic::forward_order() const {
  std::vector<std::size_t> order;
  const auto add = [&](std::size_t unit) {
    if (std::find(order.begin(), order.end(), unit) == order.end()) order.push_back(unit);
  };
  for (const std::size_t unit : options_.summed_last) add(unit);
  for (const Use& use : uses_) add(use.unit);
  for (std::size_t i = 0; i < units_.size(); ++i) add(i);
  return order;
}

int UnitTraffic::live() const {
  return static_cast<int>(
      std::count_if(units_.begin(), units_.end(), [](const State& state) { return state.unit->has_values(); }));
}

bool UnitTraffic::adds_gradients_to(std::size_t unit) const {
  return std::any_of(uses_.begin(), uses_.end(),
                     [&](const Use& use) { return use.unit == unit && adds_gradients(use.pass); });
}

UnitTraffic::Times UnitTraffic::times(std::size_t unit) const {
  const State& state = units_[unit];
  const Work& second = whole_[unit] ? state.whole_gradients : state.gathered;
  for (const Work& work : {state.needed, state.ready, state.summed, second}) work.wait();
  return {state.needed.times().done, state.ready.times().done, seconds_of(state.summed), seconds_of(second)};
}

}  // namespace stretto
