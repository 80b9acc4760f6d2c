#include "stretto/overlap/unit_traffic.hpp"

#include <algorithm>
#include <utility>

#include "core/fail.hpp"
#include "device/memory/range.hpp"
#include "device/rehearsal_mode.hpp"
#include "device/stream/abandoned_work.hpp"
#include "device/stream/place_in_computation.hpp"
#include "stretto/device.hpp"

namespace stretto {
namespace {

constexpr int fetched_ahead = 2;  // units, behind those that are gathered ahead

double seconds_of(const Work& work) { return work.times().done - work.times().started; }

}  // namespace

UnitTraffic::UnitTraffic(const std::vector<UnitStore*>& units, Stream gathers, Stream sums, const Options& options)
    : gathers_(options.overlap ? std::move(gathers) : computation()),
      sums_(options.overlap ? std::move(sums) : computation()),
      options_(options) {
  require(options.prefetch >= 0, "Parameters cannot be prefetched {} units ahead; give 0 or more.", options.prefetch);
  for (const std::size_t unit : options.summed_last) {
    require(unit < units.size() && units[unit]->stage() < ZeroStage::gradients,
            "Unit {} of {} cannot be summed last, unless it keeps its gradients.", unit, units.size());
  }
  const auto is_trained_from = [&](ZeroStage stage) {
    return std::count_if(units.begin(), units.end(),
                         [&](const UnitStore* unit) { return unit->trainable() && unit->stage() >= stage; });
  };
  require(options.delay == 0 || options.delay == 1, "Sums of gradients cannot be {} steps late; give 0 or 1.",
          options.delay);
  if (!options.overlap) options_.prefetch = 0;
  // With a delay, all sums of a step may be in flight when the next step's begin, so that the link never waits for backward.
  // Not where ranks share values out, too: they do so because memory is short.
  const bool all = options.delay > 0 && options.overlap && is_trained_from(ZeroStage::values) == 0;
  most_in_flight_ = static_cast<std::size_t>(all ? is_trained_from(ZeroStage::gradients) : options_.prefetch);
  for (UnitStore* const store : units) {
    units_.push_back({.store = store});
    whole_.push_back(store->stage() == ZeroStage::none);
  }
  for (const std::size_t unit : options.summed_last) units_[unit].summed_last = true;
  upcoming_.reserve(units.size());
  in_flight_.reserve(units.size());
  learn_order();
}

UnitTraffic::~UnitTraffic() {
  for (const State& state : units_) {
    for (const Work& work :
         {state.gathered, state.summed, state.whole_gradients, state.late_summed, state.late_whole_gradients}) {
      wait_for_abandoned("An operation of a unit of parameters", [&] { computation().wait(work); });
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
  for (State& state : units_) {
    state.has_gradients = state.used = false;
    state.needed = {};
  }
}

void UnitTraffic::begin_step() {
  require(!in_step_, "A step has begun already, of which {} uses have been made; finish its sums first.", next_);
  in_step_ = true;
  next_ = 0;
  for (State& state : units_) {
    state.store->zero_gradients();
    state.used = false;
    state.needed = {};
    if (options_.delay == 0) continue;
    state.late_summed = std::exchange(state.summed, {});
    state.late_whole_gradients = std::exchange(state.whole_gradients, {});
  }
  late_in_flight_ = in_flight_.size();
  gather_ahead();
}

void UnitTraffic::begin_use(std::size_t unit, Pass pass, int microbatch) {
  require(unit < units_.size(), "There is no unit {} among {}.", unit, units_.size());
  State& state = units_[unit];
  if (in_step_ && state.store->ordered()) note_use(unit, pass, microbatch);
  if (in_step_ && !std::exchange(state.used, true)) state.needed = place_in_computation();
  ++state.in_use;
  state.store->used_for(pass, microbatch);
  if (reads_values(pass)) {
    state.reading = true;
    if (!state.store->has_values()) gather(state);
    gather_ahead();
    arrive(state);
  }
  if (adds_gradients(pass) && state.store->trainable()) {
    if (!state.store->has_gradients()) limit_sums();
    state.store->gradients();
    state.has_gradients = true;
  }
}

// In the first step notes the use, and later compares it with the one that comes next.
void UnitTraffic::note_use(std::size_t unit, Pass pass, int microbatch) {
  if (!knows_order_) {
    uses_.push_back({unit, pass, microbatch});
  } else {
    require(next_ < uses_.size(), "Unit {} is used for {} after the last of the {} uses of a step.", unit, name(pass),
            uses_.size());
    const Use& expected = uses_[next_];
    require(expected.unit == unit && expected.pass == pass && expected.microbatch == microbatch,
            "Unit {} is used for {} as number {} of a step's {} uses, of microbatch {}, where unit {} for {} comes, of "
            "microbatch {}.",
            unit, name(pass), next_, uses_.size(), microbatch, expected.unit, name(expected.pass), expected.microbatch);
  }
  if (reads_values(pass)) units_[unit].latest_read = next_;
  if (adds_gradients(pass)) units_[unit].latest_backward = next_;
  ++next_;
}

void UnitTraffic::end_use(std::size_t unit) {
  require(unit < units_.size() && units_[unit].in_use > 0, "Unit {} of {} is not in use, or does not exist.", unit,
          units_.size());
  State& state = units_[unit];
  if (--state.in_use > 0) return;
  if (in_step_ && !knows_order_ && state.store->ordered() && state.has_gradients) {
    std::size_t& end = uses_[state.latest_backward].end;
    if (end == 0) end = ++ends_;
  }
  const bool follows_order = in_step_ && knows_order_ && state.store->ordered();
  if (follows_order && state.has_gradients && uses_[state.latest_backward].sums) {
    start_sum(unit);
    if (on_last_sum_ && uses_[state.latest_backward].last_sum) on_last_sum_(unit);
  }
  if (learning_) state.store->discard_gradients();
  // A use that has read no values does not release them: they were prefetched for a later use.
  if (std::exchange(state.reading, false) && !keeps_values(state)) {
    const bool stays =
        follows_order && options_.keep_through_step && !state.store->gathers_alone() && !uses_[state.latest_read].last;
    if (follows_order) next_reads(std::max(options_.prefetch, 1));
    if (!stays && !(follows_order && is_upcoming(unit))) state.store->release();
  }
}

void UnitTraffic::end_microbatch() {
  require(in_step_, "A microbatch ends outside a step; call begin_step() first.");
  if (!knows_order_) learn_sums(ZeroStage::gradients);
  sum_unordered(true);
}

void UnitTraffic::finish_sums() {
  require(in_step_, "A step ends that has not begun; call begin_step() first.");
  const auto used = std::find_if(units_.begin(), units_.end(), [](const State& state) { return state.in_use > 0; });
  require(used == units_.end(), "Unit {} is still in use where the step ends.", used - units_.begin());
  require(!knows_order_ || next_ == uses_.size(), "A step ends after {} uses of units, but has {}.", next_, uses_.size());
  const ProfilerRange range([] { return "sums of gradients are waited for"; });
  if (!knows_order_) learn_sums(ZeroStage::none);
  sum_unordered(false);
  for (const std::size_t unit : options_.summed_last) start_sum(unit);
  for (const State& state : units_) {
    state.store->zero_unset();  // of units that were not used
    computation().wait(options_.delay > 0 ? state.late_summed : state.summed);
    computation().wait(options_.delay > 0 ? state.late_whole_gradients : state.whole_gradients);
  }
  const std::size_t done = options_.delay > 0 ? late_in_flight_ : in_flight_.size();
  in_flight_.erase(in_flight_.begin(), in_flight_.begin() + static_cast<std::ptrdiff_t>(done));
  in_step_ = false;
  if (!knows_order_) learn_order();
}

void UnitTraffic::wait_for_sums() {
  require(!in_step_, "Sums of a step are waited for by finish_sums(); call it first.");
  for (const State& state : units_) {
    computation().wait(state.summed);
    computation().wait(state.whole_gradients);
  }
  in_flight_.clear();
}

void UnitTraffic::on_last_sum(std::function<void(std::size_t unit)> f) {
  require(!f || !on_last_sum_, "Last sums are told to one listener, which there is; take it away first.");
  on_last_sum_ = std::move(f);
}

void UnitTraffic::wait_for_sum(std::size_t unit, const Stream& stream) const {
  stream.wait(units_[unit].summed);
  stream.wait(units_[unit].whole_gradients);
}

void UnitTraffic::wait_for_late_sums(const Stream& stream) const {
  for (const State& state : units_) {
    stream.wait(state.late_summed);
    stream.wait(state.late_whole_gradients);
  }
}

// What later steps ask of the order.
void UnitTraffic::learn_order() {
  knows_order_ = !uses_.empty();
  std::vector<bool> is_read(units_.size(), false), is_summed(units_.size(), false);
  sum_order_.clear();
  std::vector<std::pair<std::size_t, std::size_t>> last_sums;
  std::size_t next_read = uses_.size();
  for (std::size_t i = uses_.size(); i-- > 0;) {
    Use& use = uses_[i];
    if (reads_values(use.pass)) {
      use.last = !is_read[use.unit];
      is_read[use.unit] = true;
      const bool same = next_read < uses_.size() && uses_[next_read].unit == use.unit;
      use.next_of_others = same ? uses_[next_read].next_of_others : next_read;
      next_read = i;
    }
    use.next_read = next_read;
    if (adds_gradients(use.pass)) units_[use.unit].gets_gradients = true;
    if (!use.sums || is_summed[use.unit]) continue;
    is_summed[use.unit] = use.last_sum = true;
    last_sums.emplace_back(use.end, use.unit);
  }
  std::ranges::sort(last_sums);  // sums begin where uses end, and nested uses end in another order than they begin
  for (const auto& [end, unit] : last_sums) sum_order_.push_back(unit);
  forward_order_ = options_.summed_last;
  std::vector<bool> has_place(units_.size(), false);
  for (const std::size_t unit : forward_order_) has_place[unit] = true;
  const auto add = [&](std::size_t unit) {
    if (!has_place[unit]) forward_order_.push_back(unit);
    has_place[unit] = true;
  };
  for (const Use& use : uses_) add(use.unit);
  for (std::size_t i = 0; i < units_.size(); ++i) add(i);
}

// Gradients of units from a stage on are complete if they have been added to. Their sums start now; in later steps, when the
// same use has ended.
void UnitTraffic::learn_sums(ZeroStage from) {
  std::vector<std::size_t> complete;
  for (std::size_t i = 0; i < units_.size(); ++i) {
    const State& state = units_[i];
    if (state.has_gradients && state.store->stage() >= from && !state.summed_last && state.store->ordered()) {
      complete.push_back(i);
    }
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

void UnitTraffic::sum_unordered(bool between_microbatches) {
  for (std::size_t i = 0; i < units_.size(); ++i) {
    const State& state = units_[i];
    if (state.store->ordered() || !state.store->trainable() || state.summed_last || learning_) continue;
    const bool each_microbatch = state.store->stage() >= ZeroStage::gradients;
    require(between_microbatches || !each_microbatch || !state.has_gradients,
            "Unit {} has gradients of a microbatch that has not ended; call end_microbatch() behind each.", i);
    if (each_microbatch != between_microbatches) continue;
    if (each_microbatch) limit_sums();
    start_sum(i);
  }
}

void UnitTraffic::start_sum(std::size_t unit) {
  const ProfilerRange range([&] { return fmt::format("gradients of unit {} are summed", unit); });
  State& state = units_[unit];
  state.ready = place_in_computation();
  state.summed = state.store->sum(sums_);
  state.has_gradients = false;
  if (whole_[unit]) state.whole_gradients = state.store->gather_gradients(sums_);
  in_flight_.push_back(state.summed);
}

// From ZeroStage::gradients on, a sum holds the memory of its whole unit until it is done.
void UnitTraffic::limit_sums() {
  while (in_flight_.size() > most_in_flight_) {
    computation().wait(in_flight_.front());
    in_flight_.erase(in_flight_.begin());
    if (late_in_flight_ > 0) --late_in_flight_;
  }
}

// ---- values

void UnitTraffic::updated(std::size_t unit) {
  State& state = units_[unit];
  state.store->share_changed();
  if (keeps_values(state) && !whole_[unit]) gather(state);
}

void UnitTraffic::wait_for_values() {
  for (State& state : units_) arrive(state);
}

void UnitTraffic::gather(State& state) {
  const ProfilerRange range([&] { return fmt::format("values of unit {} are gathered", &state - units_.data()); });
  arrive(state);
  state.gathered = state.store->gather(gathers_);
  state.arriving = true;
}

void UnitTraffic::arrive(State& state) {
  if (state.arriving) computation().wait(state.gathered);
  state.arriving = false;
}

void UnitTraffic::gather_ahead() {
  if (!in_step_ || !knows_order_) return;
  int ahead = 0;
  for (const std::size_t i : next_reads(options_.prefetch + (options_.overlap ? fetched_ahead : 0))) {
    State& state = units_[uses_[i].unit];
    const bool gathers = ahead++ < options_.prefetch;
    if (state.store->has_values()) continue;
    if (!gathers) {
      state.store->fetch();
      continue;
    }
    state.store->used_for(uses_[i].pass, uses_[i].microbatch);
    gather(state);
  }
}

// The next uses that read values, one of each unit that is not being read now; in place until the next call.
const std::vector<std::size_t>& UnitTraffic::next_reads(int count) {
  upcoming_.clear();
  std::size_t i = next_ < uses_.size() ? uses_[next_].next_read : next_;
  for (; i < uses_.size() && static_cast<int>(upcoming_.size()) < count; i = uses_[i].next_of_others) {
    const std::size_t unit = uses_[i].unit;
    if (!units_[unit].reading && !is_upcoming(unit)) upcoming_.push_back(i);
  }
  return upcoming_;
}

bool UnitTraffic::is_upcoming(std::size_t unit) const {
  return std::any_of(upcoming_.begin(), upcoming_.end(), [&](std::size_t i) { return uses_[i].unit == unit; });
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

int UnitTraffic::live() const {
  return static_cast<int>(
      std::count_if(units_.begin(), units_.end(), [](const State& state) { return state.store->has_values(); }));
}

UnitTraffic::Times UnitTraffic::times(std::size_t unit) const {
  const State& state = units_[unit];
  const Work& second = whole_[unit] ? state.whole_gradients : state.gathered;
  for (const Work& work : {state.needed, state.ready, state.summed, second}) work.wait();
  return {state.needed.times().done, state.ready.times().done, seconds_of(state.summed), seconds_of(second)};
}

}  // namespace stretto
