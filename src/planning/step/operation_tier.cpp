#include "planning/step/operation_tier.hpp"

#include <algorithm>
#include <cmath>

namespace stretto {
namespace {

constexpr std::size_t most_partitions = 5;
constexpr int most_chunks = 16;  // a power of two

// A stage that every chunk passes: the resource that it occupies (0: computing, 1: links inside nodes, 2: links between
// them) and for how long.
struct PipelineStage {
  int resource;
  double seconds;
};
using Pipeline = std::vector<PipelineStage>;

// The first chunk passes all stages; the others follow at the rate of the busiest resource.
double seconds_of(const Pipeline& pipeline, int chunks) {
  double all = 0;
  double busy[3] = {0, 0, 0};
  for (const PipelineStage& stage : pipeline) {
    all += stage.seconds;
    busy[stage.resource] += stage.seconds;
  }
  return all + (chunks - 1) * *std::max_element(busy, busy + 3);
}

// The divisible computation that produces and consumes the data of a collective.
struct AdjacentCompute {
  double before = 0, after = 0;  // seconds
  double chunk_seconds = 0;
};

class PartitionedCollective {
 public:
  PartitionedCollective(const StepCollective& collective, const AdjacentCompute& adjacent, CollectiveCosts& costs)
      : collective_(collective), adjacent_(adjacent), costs_(costs) {}

  double seconds(const Partition& partition) { return seconds_of(pipeline(partition), partition.chunks); }

  // Chunks can hide all stages but those of the busiest resource, and each costs some overhead: sqrt(hidden / overhead) of
  // them are best.
  int best_chunks(Form form) {
    const Pipeline whole = pipeline({form, 1});
    const Pipeline halves = pipeline({form, 2});
    const double sum = seconds_of(whole, 1);
    const double overhead = 2 * seconds_of(halves, 1) - sum;
    const double busiest = seconds_of(whole, 2) - sum;
    const double chunks = overhead > 0 ? std::sqrt((sum - busiest) / overhead) : most_chunks;
    int power = 1;
    while (power < most_chunks && power * std::sqrt(2.0) < chunks) power *= 2;
    return power;
  }

 private:
  Pipeline pipeline(const Partition& partition) {
    const int chunks = partition.chunks;
    const double overhead = chunks > 1 ? adjacent_.chunk_seconds : 0;
    Pipeline stages;
    if (adjacent_.before > 0) stages.push_back({0, adjacent_.before / chunks + overhead});
    for (const StepStage& stage : costs_.stages(collective_, (collective_.elements + chunks - 1) / chunks, partition.form)) {
      stages.push_back({stage.links.between > 0 ? 2 : 1, stage.seconds});
    }
    if (adjacent_.after > 0) stages.push_back({0, adjacent_.after / chunks + overhead});
    return stages;
  }

  const StepCollective& collective_;
  const AdjacentCompute adjacent_;
  CollectiveCosts& costs_;
};

AdjacentCompute adjacent_compute(const StepGraph& graph, int collective) {
  AdjacentCompute found;
  if (graph.nodes[collective].collective->payload != Payload::activation) return found;
  const auto note = [&](const StepNode& node, double& seconds) {
    if (node.collective || !node.divisible) return;
    seconds += node.seconds;
    found.chunk_seconds = std::max(found.chunk_seconds, node.chunk_seconds);
  };
  for (const StepDependency& each : graph.nodes[collective].after) {
    if (each.steps_back == 0) note(graph.nodes[each.node], found.before);
  }
  for (const StepNode& node : graph.nodes) {
    for (const StepDependency& each : node.after) {
      if (each.steps_back == 0 && each.node == collective) note(node, found.after);
    }
  }
  return found;
}

std::vector<Partition> best_of(const StepCollective& collective, const AdjacentCompute& adjacent, CollectiveCosts& costs) {
  PartitionedCollective partitioned(collective, adjacent, costs);
  std::vector<std::pair<double, Partition>> ranked;
  for (const Form form : {Form::whole, Form::by_level}) {
    if (!costs.has(collective, form)) continue;
    const int best = partitioned.best_chunks(form);
    for (int chunks : {1, best / 2, best, 2 * best}) {
      const Partition partition{form, std::clamp(chunks, 1, most_chunks)};
      const auto same = [&](const auto& other) { return other.second == partition; };
      if (std::none_of(ranked.begin(), ranked.end(), same)) ranked.emplace_back(partitioned.seconds(partition), partition);
    }
  }
  std::stable_sort(ranked.begin(), ranked.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<Partition> best;
  for (const auto& [seconds, partition] : ranked) {
    if (best.size() < most_partitions) best.push_back(partition);
  }
  if (std::find(best.begin(), best.end(), Partition()) == best.end()) best.emplace_back();
  return best;
}

}  // namespace

std::map<CollectiveKind, std::vector<Partition>> partitions_worth_trying(const StepGraph& graph, CollectiveCosts& costs) {
  std::map<CollectiveKind, std::vector<Partition>> worth;
  for (int i = 0; i < static_cast<int>(graph.nodes.size()); ++i) {
    const StepNode& node = graph.nodes[i];
    if (!node.collective || worth.count(kind_of(node)) != 0) continue;
    worth[kind_of(node)] = best_of(*node.collective, adjacent_compute(graph, i), costs);
  }
  return worth;
}

}  // namespace stretto
