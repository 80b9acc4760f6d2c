#pragma once
#include "overlap/planner/collective_costs.hpp"

namespace stretto {

// One node's collective, or a bucket's.
struct Unit {
  std::vector<int> members;
  StepCollective collective;  // of all its members
  Partition partition;
  int bucket = -1;
  bool postponed = false;

  // The stages of one chunk, and of what comes in the next forward where that is postponed.
  std::vector<StepStage> stages(CollectiveCosts& costs) const;
  std::vector<StepStage> gathers(CollectiveCosts& costs) const;

 private:
  std::int64_t chunk() const { return (collective.elements + partition.chunks - 1) / partition.chunks; }
  std::vector<StepStage> half(StepCollective which, Collective kind, CollectiveCosts& costs) const;
};

// What knobs make of a graph's collectives.
struct StepUnits {
  StepUnits(const StepGraph& graph, const StepKnobs& knobs);
  const Unit& of(int collective) const { return units[unit_of[collective]]; }
  // Divisible computation, and activations of the same step that it makes or takes.
  bool go_together(int computation, int collective) const;
  Priority priority(Payload payload) const;

  const StepGraph& graph;
  const StepKnobs& knobs;
  std::vector<int> order, position;      // of nodes
  std::vector<int> first_use, last_use;  // by node: positions, within the step
  std::vector<int> unit_of;              // by node; -1 of computation
  std::vector<Unit> units;

 private:
  void put_in_order();
  void make_units();
  bool may_join(const Unit& bucket, int gradient) const;
  Partition partition_of(const StepNode& node) const;
  void postpone();
};

// Whether a gradient's update can be done by shares: all that waits for it updates element by element, and what was updated
// is wanted in the next step only.
bool can_be_postponed(const StepGraph& graph, int gradient);

inline bool is_bucketed(const StepNode& node) {
  return node.collective && node.collective->payload == Payload::gradient && node.collective->kind == Collective::all_reduce;
}

}  // namespace stretto
