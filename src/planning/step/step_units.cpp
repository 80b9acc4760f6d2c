#include "planning/step/step_units.hpp"

#include <algorithm>
#include <numeric>

#include "core/fail.hpp"
#include "planning/step/layer_order.hpp"

namespace stretto {

std::vector<StepStage> StepUnit::stages(CollectiveCosts& costs) const {
  return postponed ? half(collective, Collective::reduce_scatter, costs) : costs.stages(collective, chunk(), partition.form);
}

std::vector<StepStage> StepUnit::gathers(CollectiveCosts& costs) const {
  StepCollective gather = collective;
  gather.dtype = collective.gathers_as.value_or(collective.dtype);
  return half(gather, Collective::all_gather, costs);
}

std::vector<StepStage> StepUnit::half(StepCollective which, Collective kind, CollectiveCosts& costs) const {
  which.kind = kind;
  return costs.stages(which, chunk(), partition.form);
}

StepUnits::StepUnits(const StepGraph& its_graph, const StepKnobs& its_knobs)
    : graph(its_graph), knobs(its_knobs), order(graph.nodes.size()), unit_of(graph.nodes.size(), -1) {
  put_in_order();
  make_units();
  postpone();
}

void StepUnits::put_in_order() {
  std::iota(order.begin(), order.end(), 0);
  if (knobs.early) order = layer_order(graph);
  position.resize(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) position[order[i]] = static_cast<int>(i);
  first_use.assign(order.size(), static_cast<int>(order.size()));
  last_use.assign(order.size(), -1);
  for (const int node : order) {
    for (const StepDependency& each : graph.nodes[node].after) {
      if (each.steps_back != 0) continue;
      first_use[each.node] = std::min(first_use[each.node], position[node]);
      last_use[each.node] = std::max(last_use[each.node], position[node]);
    }
  }
}

void StepUnits::make_units() {
  int open = -1, buckets = 0;
  std::int64_t bytes = 0;  // in the open bucket
  for (const int i : order) {
    const StepNode& node = graph.nodes[i];
    if (!node.collective) continue;
    const StepCollective& own = *node.collective;
    const bool joins = open >= 0 && is_bucketed(node) && may_join(units[open], i);
    if (!joins) {
      units.push_back({{}, own, partition_of(node)});
      units.back().collective.elements = 0;
    }
    unit_of[i] = joins ? open : static_cast<int>(units.size()) - 1;
    StepUnit& unit = units[unit_of[i]];
    unit.members.push_back(i);
    unit.collective.elements += own.elements;
    if (!is_bucketed(node)) continue;
    if (!joins) {
      unit.bucket = buckets++;
      bytes = 0;
    }
    bytes += own.elements * static_cast<std::int64_t>(size_of(own.dtype));
    const bool first = unit.bucket == 0 && knobs.first_bucket_bytes > 0;
    open = bytes < (first ? knobs.first_bucket_bytes : knobs.bucket_bytes) ? unit_of[i] : -1;
  }
}

// A bucket's gradients are of one kind, and no node before its last gradient waits for one of them.
bool StepUnits::may_join(const StepUnit& bucket, int gradient) const {
  const StepCollective& own = *graph.nodes[gradient].collective;
  const StepCollective& its = bucket.collective;
  const auto not_yet_used = [&](int member) { return first_use[member] > position[gradient]; };
  return own.group == its.group && own.dtype == its.dtype && own.gathers_as == its.gathers_as &&
         std::all_of(bucket.members.begin(), bucket.members.end(), not_yet_used);
}

Partition StepUnits::partition_of(const StepNode& node) const {
  const auto found = knobs.partitions.find(kind_of(node));
  const Partition partition = found == knobs.partitions.end() ? Partition() : found->second;
  require(partition.chunks >= 1 && (partition.chunks & (partition.chunks - 1)) == 0,
          "{} cannot be cut into {} chunks; choose a power of two.", node.name, partition.chunks);
  return partition;
}

void StepUnits::postpone() {
  int buckets = 0;
  for (const StepUnit& unit : units) buckets = std::max(buckets, unit.bucket + 1);
  require(knobs.postponed.empty() || static_cast<int>(knobs.postponed.size()) == buckets,
          "There are {} flags of what is postponed for {} buckets; give as many, or none.", knobs.postponed.size(), buckets);
  for (StepUnit& unit : units) {
    unit.postponed = unit.bucket >= 0 && !knobs.postponed.empty() && knobs.postponed[unit.bucket];
    if (!unit.postponed) continue;
    for (const int member : unit.members) {
      require(can_be_postponed(graph, member),
              "The gather of {} cannot be postponed, since what waits for it is no elementwise update; postpone less.",
              graph.nodes[member].name);
    }
  }
}

bool StepUnits::go_together(int computation, int collective) const {
  const StepNode& computes = graph.nodes[computation];
  const StepNode& communicates = graph.nodes[collective];
  return !computes.collective && computes.divisible && communicates.collective &&
         communicates.collective->payload == Payload::activation;
}

Priority StepUnits::priority(Payload payload) const {
  if (!knobs.priorities) return Priority::normal;
  switch (payload) {
    case Payload::activation: return Priority::urgent;
    case Payload::parameter: return Priority::normal;
    default: return Priority::background;
  }
}

bool can_be_postponed(const StepGraph& graph, int gradient) {
  const auto waits_for = [](const StepNode& node, int other, bool in_the_step) {
    return std::any_of(node.after.begin(), node.after.end(), [&](const StepDependency& each) {
      return each.node == other && !(in_the_step && each.steps_back != 0);
    });
  };
  bool updates = false;
  for (int i = 0; i < static_cast<int>(graph.nodes.size()); ++i) {
    const StepNode& node = graph.nodes[i];
    if (!waits_for(node, gradient, false)) continue;
    if (node.collective || node.phase != Phase::update || !node.elementwise) return false;
    updates = true;
    for (const StepNode& user : graph.nodes) {
      if ((user.collective || user.phase != Phase::update) && waits_for(user, i, true)) return false;
    }
  }
  return updates;
}

}  // namespace stretto
