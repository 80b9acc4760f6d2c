#pragma once
#include "planning/step/collective_costs.hpp"

namespace stretto {

// A collective that is issued once: of one node, or of a bucket of gradients.
struct StepUnit {
  std::vector<int> members;
  StepCollective collective;  // of all members together
  Partition partition;
  int bucket = -1;
  bool postponed = false;

  // The stages of one chunk in this step, and, if the unit is postponed, of one chunk of its gather in the next forward.
  std::vector<StepStage> stages(CollectiveCosts& costs) const;
  std::vector<StepStage> gathers(CollectiveCosts& costs) const;

 private:
  std::int64_t chunk() const { return (collective.elements + partition.chunks - 1) / partition.chunks; }
  std::vector<StepStage> half(StepCollective which, Collective kind, CollectiveCosts& costs) const;
};

// A graph's collectives as the knobs group, order and partition them.
struct StepUnits {
  StepUnits(const StepGraph& graph, const StepKnobs& knobs);
  const StepUnit& of(int collective) const { return units[unit_of[collective]]; }
  // True for a divisible computation and a collective of activations: where one waits for the other in the same step, both
  // are cut alike.
  bool go_together(int computation, int collective) const;
  Priority priority(Payload payload) const;

  const StepGraph& graph;
  const StepKnobs& knobs;
  std::vector<int> order, position;      // nodes in order, and each node's position in it
  std::vector<int> first_use, last_use;  // by node: positions, within the step
  std::vector<int> unit_of;              // by node; -1 for computation
  std::vector<StepUnit> units;

 private:
  void put_in_order();
  void make_units();
  bool may_join(const StepUnit& bucket, int gradient) const;
  Partition partition_of(const StepNode& node) const;
  void postpone();
};

// Throws Error(invalid_argument) naming an invalid node.
void check(const StepGraph& graph);

// A lower bound for the step time of any schedule, in seconds (StepSchedule::bound_seconds).
double step_bound(const StepGraph& graph, const StepCluster& cluster);

// True if a gradient's update can be done by shares: every node that waits for the gradient updates element by element, and
// only the next step needs the updated parameters.
bool can_be_postponed(const StepGraph& graph, int gradient);

inline bool is_bucketed(const StepNode& node) {
  return node.collective && node.collective->payload == Payload::gradient && node.collective->kind == Collective::all_reduce;
}

}  // namespace stretto
