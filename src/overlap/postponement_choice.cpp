#include "overlap/postponement_choice.hpp"

#include <algorithm>
#include <numeric>

#include "core/log.hpp"
#include "device/stream/place_in_computation.hpp"
#include "device/stream/skipped_work.hpp"

namespace stretto {

PostponementChoice::PostponementChoice(Communicator world, std::vector<Unit> units, int steps)
    : world_(std::move(world)), units_(std::move(units)), steps_(steps) {}

void PostponementChoice::begin_step() { begin_ = place_in_computation(); }
void PostponementChoice::computed() { computed_ = place_in_computation(); }
void PostponementChoice::update_begins() { update_begin_ = place_in_computation(); }

bool PostponementChoice::end_step(UnitTraffic& traffic) {
  const double begin = done_at(begin_);
  const double end = done_at(place_in_computation());
  // The whole step first, then two numbers of each unit.
  std::vector<double> computing = {done_at(computed_) - begin, end - done_at(update_begin_)};
  std::vector<double> sending;
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    const UnitTraffic::Times times = units_[unit].ranks > 1 ? traffic.times(unit) : UnitTraffic::Times();
    computing.insert(computing.end(), {times.needed - begin, times.ready - begin});
    sending.insert(sending.end(), {times.sum, times.gather});
  }
  const auto agree = [&](std::vector<double>& numbers, ReduceOp op, std::vector<double>& least) {
    const Work agreement = world_.all_reduce(numbers.data(), numbers.data(), static_cast<std::int64_t>(numbers.size()),
                                             DType::f64, op, Stream::inline_(), {.tag = "times of units"});
    agreement.wait();
    if (was_skipped(agreement)) return false;
    if (least.empty()) least = numbers;
    for (std::size_t i = 0; i < least.size(); ++i) least[i] = std::min(least[i], numbers[i]);
    return true;
  };
  // A rehearsal without communication measures something else, and its ranks cannot agree.
  if (!agree(computing, ReduceOp::max, computing_) || !agree(sending, ReduceOp::min, sending_)) return false;
  if (--steps_ > 0) return false;

  std::vector<std::size_t> order;  // of backward
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    if (units_[unit].ranks > 1) order.push_back(unit);
  }
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return computing_[3 + 2 * a] < computing_[3 + 2 * b]; });
  const StepTimes times = times_of(order);
  const std::vector<bool> postponed = best_postponed(times);
  if (world_.rank() == 0) tell(times, postponed);
  std::vector<bool> whole(units_.size(), true);
  for (std::size_t i = 0; i < order.size(); ++i) whole[order[i]] = !postponed[i];
  traffic.set_whole(std::move(whole));
  return true;
}

void PostponementChoice::tell(const StepTimes& times, const std::vector<bool>& postponed) {
  const auto milliseconds = [&](const std::vector<bool>& set) { return step_seconds(times, set) * 1e3; };
  const std::size_t units = postponed.size();
  double communication = 0;
  for (const BucketTimes& each : times.buckets) communication += each.reduce_scatter + each.gather_gradients;
  log().info(
      "The values of {} of {} units are gathered in the next forward: a step of {:.1f} ms is expected, of {:.1f} with none "
      "and "
      "of {:.1f} with all. Forward and backward take {:.1f} ms, the units' communication {:.1f} ms.",
      std::count(postponed.begin(), postponed.end(), true), units, milliseconds(postponed),
      milliseconds(std::vector<bool>(units, false)), milliseconds(std::vector<bool>(units, true)), times.compute * 1e3,
      communication * 1e3);
}

StepTimes PostponementChoice::times_of(const std::vector<std::size_t>& order) const {
  const double elements =
      std::accumulate(units_.begin(), units_.end(), 0.0, [](double sum, const Unit& unit) { return sum + unit.elements; });
  StepTimes times{.compute = computing_[0]};
  for (const std::size_t unit : order) {
    times.ranks = units_[unit].ranks;
    times.buckets.push_back({.needed = computing_[2 + 2 * unit],
                             .ready = computing_[3 + 2 * unit],
                             .reduce_scatter = sending_[2 * unit],
                             .gather_gradients = sending_[2 * unit + 1],
                             .gather_parameters = sending_[2 * unit + 1] * units_[unit].values_width,
                             .update = computing_[1] * units_[unit].elements / elements});
  }
  return times;
}

}  // namespace stretto
