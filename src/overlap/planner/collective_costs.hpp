#pragma once
#include <map>
#include <tuple>

#include "stretto/cost.hpp"
#include "stretto/overlap/planner.hpp"

namespace stretto {

// How a group's ranks lie on the nodes of a cluster.
struct GroupPlace {
  int ranks = 1;
  int on_node = 1;  // of them
  int groups = 1;   // like it that share a node's ports
  int nodes() const { return ranks / on_node; }
  static GroupPlace of(const StepGroup& group, const StepCluster& cluster);
};

// What collectives of a step cost on a cluster's links, each by the fastest method of one level that the cost model knows
// (cost.hpp). Remembers what it was asked.
class CollectiveCosts {
 public:
  explicit CollectiveCosts(const StepCluster& cluster) : cluster_(cluster) {}

  // The stages of so many elements of a collective done in this form. Throws Error(invalid_argument) where it has not it.
  std::vector<StepStage> stages(const StepCollective& collective, std::int64_t elements, Form form);
  bool has(const StepCollective& collective, Form form) const;
  GroupPlace place(const StepGroup& group) const { return GroupPlace::of(group, cluster_); }
  const StepCluster& cluster() const { return cluster_; }

 private:
  StepStage stage(Collective kind, StepStage::Level level, const GroupPlace& place, std::int64_t elements, DType dtype);
  StepStage fastest(Collective kind, StepStage::Level level, const GroupPlace& place, std::int64_t elements, DType dtype);
  StepStage measured(const StepCollective& collective, Collective kind, std::int64_t elements) const;

  using Key = std::tuple<Collective, StepStage::Level, int, int, int, std::int64_t, DType>;
  StepCluster cluster_;
  std::map<Key, StepStage> known_;
};

}  // namespace stretto
