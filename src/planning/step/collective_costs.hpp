#pragma once
#include <map>
#include <tuple>

#include "stretto/planning/cost.hpp"
#include "stretto/planning/planner.hpp"

namespace stretto {

// The distribution of a group's ranks over the nodes of a cluster.
struct GroupPlacement {
  int ranks = 1;
  int on_node = 1;  // the group's ranks on each node
  int groups = 1;   // equal groups that share a node's ports
  int nodes() const { return ranks / on_node; }
  static GroupPlacement of(const StepGroup& group, const StepCluster& cluster);
};

// The costs of a step's collectives on a cluster's links, each by the fastest single-level method that the cost model knows
// (cost.hpp). Remembers earlier results.
class CollectiveCosts {
 public:
  explicit CollectiveCosts(const StepCluster& cluster) : cluster_(cluster) {}

  // The stages of `elements` elements of the collective in this form. Throws Error(invalid_argument) unless has().
  std::vector<StepStage> stages(const StepCollective& collective, std::int64_t elements, Form form);
  bool has(const StepCollective& collective, Form form) const;
  GroupPlacement place(const StepGroup& group) const { return GroupPlacement::of(group, cluster_); }
  // The seconds of a hop round a ring: so many messages, of so many bytes together, from each rank of the group to the next
  // one, in all groups at a time.
  double hop_seconds(const StepGroup& ring, int messages, std::int64_t bytes) const;
  const StepCluster& cluster() const { return cluster_; }

 private:
  StepStage stage(Collective kind, StepStage::Level level, const GroupPlacement& place, std::int64_t elements, DType dtype);
  StepStage fastest(Collective kind, StepStage::Level level, const GroupPlacement& place, std::int64_t elements,
                    DType dtype);

  using Key = std::tuple<Collective, StepStage::Level, int, int, int, std::int64_t, DType>;
  StepCluster cluster_;
  std::map<Key, StepStage> known_;
};

}  // namespace stretto
