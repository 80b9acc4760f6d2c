#include "stretto/overlap/prefetcher.hpp"

#include <algorithm>
#include <exception>
#include <set>

#include "core/fail.hpp"
#include "core/log.hpp"
#include "device/memory/range.hpp"
#include "stretto/device.hpp"

namespace stretto {

const char* name(Prefetcher::Pass pass) { return pass == Prefetcher::Pass::forward ? "forward" : "backward"; }

Prefetcher::Prefetcher(std::vector<Unit> units, std::vector<Use> order, Stream stream, const Options& options)
    : order_(std::move(order)), stream_(std::move(stream)), options_(options), learns_(order_.empty()) {
  require(options_.ahead >= 1, "Parameters cannot be prefetched {} uses ahead; give at least 1, or overlap=false for none.",
          options_.ahead);
  if (options_.most_live == 0) options_.most_live = options_.ahead + 1;
  require(options_.most_live >= 1, "At most {} units of parameters may be gathered; give at least 1.", options_.most_live);
  for (Unit& unit : units) {
    require(unit.gather && unit.release, "Unit {} of {} cannot be {}; give both functions.", units_.size(), units.size(),
            unit.gather ? "released" : "gathered");
    units_.push_back({std::move(unit)});
  }
  for (const Use& use : order_) {
    require(use.unit < units_.size(), "The order of uses names unit {}, but there are {}, counted from 0.", use.unit,
            units_.size());
  }
}

// Waits for gathers in flight: the owner of the shares may free them after this.
Prefetcher::~Prefetcher() {
  for (const State& state : units_) {
    try {
      if (state.live) computation().wait(state.gathered);
    } catch (const std::exception& error) {
      log().debug("A gather of parameters that nobody used has failed: {}", error.what());
    }
  }
}

void Prefetcher::begin_step() {
  require(!in_step_, "A step has begun already, of which {} uses have been made; end it first.", next_);
  in_step_ = true;
  next_ = 0;
  gather_ahead();
}

void Prefetcher::begin_use(std::size_t unit, Pass pass) {
  const Use use{unit, pass};
  require(in_step_, "Unit {} is used outside a step; begin one first.", unit);
  require(unit < units_.size() && !units_[unit].in_use, "Unit {} of {} is in use already, or does not exist.", unit,
          units_.size());
  if (learns_) {
    order_.push_back(use);
  } else {
    require(next_ < order_.size(), "Unit {} is used for {} after the last of the {} uses of a step.", unit, name(pass),
            order_.size());
    const Use& expected = order_[next_];
    require(expected == use, "Unit {} is used for {} as number {} of a step's {} uses, where unit {} for {} comes.", unit,
            name(pass), next_, order_.size(), expected.unit, name(expected.pass));
  }
  ++next_;
  State& state = units_[unit];
  if (!state.live) {
    require(live_ < options_.most_live,
            "Unit {} cannot be gathered while {} others are in use; most_live={} has to be larger for uses that are nested.",
            unit, live_, options_.most_live);
    gather(use, options_.overlap ? stream_ : computation());
  }
  state.in_use = true;
  gather_ahead();
  computation().wait(state.gathered);
}

void Prefetcher::end_use(std::size_t unit) {
  require(unit < units_.size() && units_[unit].in_use, "Unit {} of {} is not in use, or does not exist.", unit,
          units_.size());
  units_[unit].in_use = false;
  if (!stays(unit)) release(units_[unit]);
}

void Prefetcher::end_step() {
  require(in_step_, "A step ends that has not begun.");
  const auto used = std::find_if(units_.begin(), units_.end(), [](const State& state) { return state.in_use; });
  require(used == units_.end(), "Unit {} is still in use where the step ends.", used - units_.begin());
  require(learns_ || next_ == order_.size(), "A step ends after {} uses of units, but has {}.", next_, order_.size());
  // No unit is gathered here: every gathered unit has been used, and end_use() keeps only units with a next use.
  in_step_ = false;
  learns_ = order_.empty();
}

void Prefetcher::gather(const Use& use, const Stream& stream) {
  const ProfilerRange range([&] { return fmt::format("unit {} is gathered for {}", use.unit, name(use.pass)); });
  State& state = units_[use.unit];
  ++live_;
  state.live = true;
  state.gathered = state.functions.gather(use.pass, stream);
}

// Gathers in the order of the uses and stops at the first one without room: a later use never takes the room of an earlier
// one.
void Prefetcher::gather_ahead() {
  if (!options_.overlap || learns_) return;
  const std::size_t end = std::min(order_.size(), next_ + static_cast<std::size_t>(options_.ahead));
  for (std::size_t i = next_; i < end; ++i) {
    if (units_[order_[i].unit].live) continue;
    if (live_ == options_.most_live) return;
    gather(order_[i], stream_);
  }
}

void Prefetcher::release(State& state) {
  state.functions.release();
  state.gathered = {};
  state.live = false;
  --live_;
}

// True if the next begin_use() would gather the unit again, and there is room for all units used before it.
bool Prefetcher::stays(std::size_t unit) const {
  if (learns_) return false;
  const std::size_t end = std::min(order_.size(), next_ + static_cast<std::size_t>(options_.ahead) + 1);
  std::set<std::size_t> needed;
  for (std::size_t i = 0; i < units_.size(); ++i) {
    if (units_[i].in_use) needed.insert(i);
  }
  for (std::size_t i = next_; i < end; ++i) {
    needed.insert(order_[i].unit);
    if (order_[i].unit == unit) return static_cast<int>(needed.size()) <= options_.most_live;
  }
  return false;
}

}  // namespace stretto
