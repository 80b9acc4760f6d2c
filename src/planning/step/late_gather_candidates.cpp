#include "planning/step/late_gather_candidates.hpp"

#include <algorithm>

#include "overlap/postponement.hpp"
#include "planning/step/step_units.hpp"

namespace stretto {
namespace {

// The time on the busiest link.
double seconds_of(const std::vector<StepStage>& stages, int chunks) {
  LinkSeconds sum;
  for (const StepStage& stage : stages) {
    sum.inside += stage.links.inside;
    sum.between += stage.links.between;
  }
  return std::max(sum.inside, sum.between) * chunks;
}

// The input of best_postponed(), from the graph of a step in which computation waits for nothing.
class PlannedTimes {
 public:
  PlannedTimes(const StepUnits& units, CollectiveCosts& costs)
      : units_(units), costs_(costs), begins_(units.order.size()), ends_(units.order.size()), users_(units.order.size()) {
    for (const int i : units.order) {
      const StepNode& node = units.graph.nodes[i];
      begins_[i] = result_.compute;
      if (!node.collective && node.phase != Phase::update) result_.compute += node.seconds;
      ends_[i] = node.collective ? 0 : result_.compute;
      for (const StepDependency& each : node.after) {
        users_[each.node].push_back({i, each.steps_back});
        if (node.collective && each.steps_back == 0) ends_[i] = std::max(ends_[i], ends_[each.node]);
      }
    }
  }

  StepTimes take() {
    for (const StepUnit& unit : units_.units) {
      if (unit.bucket < 0) continue;
      result_.ranks = unit.collective.group.size;
      result_.buckets.push_back(times_of(unit));
    }
    return std::move(result_);
  }

 private:
  BucketTimes times_of(const StepUnit& unit) const {
    const int chunks = unit.partition.chunks;
    StepUnit halves = unit;
    halves.postponed = true;
    BucketTimes times;
    times.reduce_scatter = seconds_of(halves.stages(costs_), chunks);
    times.gather_gradients = std::max(0.0, seconds_of(unit.stages(costs_), chunks) - times.reduce_scatter);
    times.gather_parameters = seconds_of(halves.gathers(costs_), chunks);
    times.needed = result_.compute;
    for (const int member : unit.members) {
      times.ready = std::max(times.ready, ends_[member]);
      for (const StepDependency& update : users_[member]) {
        times.update += units_.graph.nodes[update.node].seconds;
        for (const StepDependency& user : users_[update.node]) {
          if (user.steps_back == 1) times.needed = std::min(times.needed, begins_[user.node]);
        }
      }
    }
    return times;
  }

  const StepUnits& units_;
  CollectiveCosts& costs_;
  std::vector<double> begins_, ends_;  // by node
  std::vector<std::vector<StepDependency>> users_;
  StepTimes result_;
};

StepKnobs without_postponed(StepKnobs knobs) {
  knobs.postponed.clear();
  return knobs;
}

}  // namespace

std::vector<std::vector<bool>> postponed_sets(const StepGraph& graph, CollectiveCosts& costs, const StepKnobs& knobs) {
  const StepKnobs bucketing = without_postponed(knobs);
  const StepUnits units(graph, bucketing);
  const StepTimes times = PlannedTimes(units, costs).take();
  std::vector<std::vector<bool>> sets{{}, std::vector<bool>(times.buckets.size(), true)};
  std::vector<bool> best = best_postponed(times);
  const auto count = std::count(best.begin(), best.end(), true);
  if (count > 0 && count < std::ssize(best)) sets.push_back(std::move(best));
  return sets;
}

std::vector<bool> same_postponed(const StepGraph& graph, const StepKnobs& from, const StepKnobs& to) {
  if (from.postponed.empty()) return {};
  const StepUnits before(graph, from);
  const StepKnobs bucketing = without_postponed(to);
  const StepUnits after(graph, bucketing);
  std::vector<bool> set;
  for (const StepUnit& unit : after.units) {
    if (unit.bucket >= 0) set.push_back(before.of(unit.members.front()).postponed);
  }
  return std::find(set.begin(), set.end(), true) == set.end() ? std::vector<bool>() : set;
}

}  // namespace stretto
