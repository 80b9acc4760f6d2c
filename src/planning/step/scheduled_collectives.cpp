// A schedule's description of each collective.
#include <fmt/format.h>

#include <algorithm>

#include "planning/step/step_lowering.hpp"

namespace stretto {
namespace {

// The method of the single call that does all stages of all chunks; automatic if no single call does.
Method method_of(const StepUnit& unit, const std::vector<StepStage>& stages) {
  if (stages.size() == 1) return stages.front().method;
  if (unit.partition.form != Form::by_level || (unit.postponed && stages.empty())) return Algorithm::automatic;
  Method method(Algorithm::two_level);
  for (const StepStage& stage : stages) {
    (stage.level == StepStage::Level::between ? method.between : method.inside) = stage.method.algorithm;
  }
  method.pieces = unit.partition.chunks;
  method.lanes = std::min(unit.partition.chunks, most_lanes);
  return method;
}

class IssuePositions {
 public:
  IssuePositions(const StepUnits& units, const std::map<int, int>& rooms) : units_(units), rooms_(rooms) {}

  // The position of the last computation that must end before the unit, directly or through other collectives; -1: none.
  int of(const StepUnit& unit) {
    int last = -1;
    for (const int member : unit.members) {
      for (const StepDependency& each : units_.graph.nodes[member].after) {
        if (each.steps_back == 0) last = std::max(last, of_node(each.node));
      }
      const auto room = rooms_.find(member);
      if (room != rooms_.end()) last = std::max(last, units_.position[room->second]);
    }
    for (const int member : unit.members) known_[member] = last;
    return last;
  }

 private:
  int of_node(int node) {
    if (!units_.graph.nodes[node].collective) return units_.position[node];
    const auto found = known_.find(node);
    return found != known_.end() ? found->second : of(units_.of(node));
  }

  const StepUnits& units_;
  const std::map<int, int>& rooms_;
  std::map<int, int> known_;  // by collective
};

}  // namespace

std::vector<ScheduledCollective> scheduled_collectives(const StepUnits& units, CollectiveCosts& costs,
                                                       const std::map<int, int>& rooms) {
  std::vector<ScheduledCollective> all;
  IssuePositions positions(units, rooms);
  for (const StepUnit& unit : units.units) {
    const StepNode& first = units.graph.nodes[unit.members.front()];
    ScheduledCollective made;
    made.name = unit.bucket >= 0 ? fmt::format("bucket {}", unit.bucket) : first.name;
    made.nodes = unit.members;
    made.kind = kind_of(first);
    made.partition = unit.partition;
    made.stages = unit.stages(costs);
    if (unit.postponed) made.postponed = unit.gathers(costs);
    made.method = method_of(unit, made.stages);
    made.stream = name(unit.collective.payload);
    made.priority = units.priority(unit.collective.payload);
    made.bucket = unit.bucket;
    made.bytes = unit.collective.elements * static_cast<std::int64_t>(size_of(unit.collective.dtype));
    const int position = positions.of(unit);
    made.issued_after = position < 0 ? -1 : units.order[position];
    all.push_back(std::move(made));
  }
  return all;
}

}  // namespace stretto
