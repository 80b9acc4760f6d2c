#include "overlap/planner/operation_tier.hpp"

#include <algorithm>
#include <cmath>

namespace stretto {
namespace {

constexpr std::size_t most_partitions = 5;

// Seconds of each part of a chunk's way, one after the other, and on which resource.
struct Part {
  int resource;
  double seconds;
};
using Way = std::vector<Part>;

// Chunks that follow each other: the first goes all the way, the others behind it as fast as the busiest resource lets them.
double seconds_of(const Way& chunk, int chunks) {
  double all = 0;
  double busy[3] = {0, 0, 0};
  for (const Part& part : chunk) {
    all += part.seconds;
    busy[part.resource] += part.seconds;
  }
  return all + (chunks - 1) * *std::max_element(busy, busy + 3);
}

struct Beside {
  double before = 0, after = 0;  // seconds of the divisible computation that makes, and that takes, what is communicated
  double chunk_seconds = 0;
};

class Operation {
 public:
  Operation(const StepCollective& collective, const Beside& beside, CollectiveCosts& costs)
      : collective_(collective), beside_(beside), costs_(costs) {}

  double seconds(const Partition& partition) { return seconds_of(way(partition), partition.chunks); }

  // What chunks can hide is all but the busiest resource's part, at so much more a chunk: sqrt(hidden / overhead) of them.
  int best_chunks(Form form, int most) {
    const Way whole = way({form, 1});
    const Way halves = way({form, 2});
    const double sum = seconds_of(whole, 1);
    const double overhead = 2 * seconds_of(halves, 1) - sum;
    const double busiest = seconds_of(whole, 2) - sum;
    const double chunks = overhead > 0 ? std::sqrt((sum - busiest) / overhead) : most;
    int power = 1;
    while (power < most && power * std::sqrt(2.0) < chunks) power *= 2;
    return power;
  }

 private:
  Way way(const Partition& partition) {
    const int chunks = partition.chunks;
    const double overhead = chunks > 1 ? beside_.chunk_seconds : 0;
    Way way;
    if (beside_.before > 0) way.push_back({0, beside_.before / chunks + overhead});
    for (const StepStage& stage : costs_.stages(collective_, (collective_.elements + chunks - 1) / chunks, partition.form)) {
      way.push_back({stage.links.between > 0 ? 2 : 1, stage.seconds});
    }
    if (beside_.after > 0) way.push_back({0, beside_.after / chunks + overhead});
    return way;
  }

  const StepCollective& collective_;
  const Beside beside_;
  CollectiveCosts& costs_;
};

Beside beside(const StepGraph& graph, int collective) {
  Beside found;
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

std::vector<Partition> best_of(const StepCollective& collective, const Beside& beside, CollectiveCosts& costs,
                               const PlannerOptions& options) {
  Operation operation(collective, beside, costs);
  std::vector<std::pair<double, Partition>> ranked;
  for (const Form form : {Form::whole, Form::scatter_gather, Form::reduce_broadcast, Form::by_level}) {
    if (!costs.has(collective, form)) continue;
    const int best = operation.best_chunks(form, options.most_chunks);
    for (int chunks : {1, best / 2, best, 2 * best}) {
      const Partition partition{form, std::clamp(chunks, 1, options.most_chunks)};
      const auto same = [&](const auto& other) { return other.second == partition; };
      if (std::none_of(ranked.begin(), ranked.end(), same)) ranked.emplace_back(operation.seconds(partition), partition);
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

std::map<CollectiveKind, std::vector<Partition>> partitions_worth_trying(const StepGraph& graph, CollectiveCosts& costs,
                                                                         const PlannerOptions& options) {
  std::map<CollectiveKind, std::vector<Partition>> worth;
  for (int i = 0; i < static_cast<int>(graph.nodes.size()); ++i) {
    const StepNode& node = graph.nodes[i];
    if (!node.collective || worth.count(kind_of(node)) != 0) continue;
    PlannerOptions its = options;
    const Beside neighbours = options.may_chunk_compute ? beside(graph, i) : Beside();
    if (!options.may_chunk_compute && node.collective->payload == Payload::activation) its.most_chunks = 1;
    worth[kind_of(node)] = best_of(*node.collective, neighbours, costs, its);
  }
  return worth;
}

}  // namespace stretto
