// The search for a step's best knobs. The simulation that times each candidate also makes the schedule's prediction.
#include "stretto/planning/planner.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "planning/step/late_gather_candidates.hpp"
#include "planning/step/operation_tier.hpp"
#include "planning/step/step_lowering.hpp"

namespace stretto {
namespace {

constexpr std::int64_t mebibyte = std::int64_t{1} << 20;
constexpr std::int64_t bucket_sizes[] = {0,
                                         mebibyte,
                                         2 * mebibyte,
                                         4 * mebibyte,
                                         8 * mebibyte,
                                         16 * mebibyte,
                                         25 * mebibyte,
                                         50 * mebibyte,
                                         100 * mebibyte,
                                         200 * mebibyte,
                                         400 * mebibyte};
constexpr double least_gain = 1e-4;     // relative; a candidate that gains less is no better
constexpr double least_benefit = 1e-3;  // relative; a decision that brings less is undone

// Every collective as a whole, by one level.
StepKnobs blocking_knobs() {
  StepKnobs knobs;
  knobs.blocking = true;
  knobs.ahead = 0;
  return knobs;
}
StepKnobs unpartitioned_knobs(const StepGraph& graph) {
  StepKnobs knobs;
  knobs.ahead = graph.most_live_gathers - 1;
  return knobs;
}
// PyTorch DDP's default bucket sizes.
StepKnobs bucket_knobs(const StepGraph& graph) {
  StepKnobs knobs = unpartitioned_knobs(graph);
  knobs.bucket_bytes = 25 * mebibyte;
  knobs.first_bucket_bytes = mebibyte;
  return knobs;
}

class KnobSearch {
 public:
  KnobSearch(const StepGraph& graph, const StepCluster& cluster, double slowdown)
      : graph_(graph), costs_(cluster), slowdown_(slowdown) {
    for (int i = 0; i < static_cast<int>(graph.nodes.size()); ++i) {
      const StepNode& node = graph.nodes[i];
      if (!node.collective) continue;
      gathers_ |= node.collective->payload == Payload::parameter;
      activates_ |= node.collective->payload == Payload::activation;
      if (!is_bucketed(node)) continue;
      postpones_ = (buckets_ == 0 || postpones_) && can_be_postponed(graph, i);
      ++buckets_;
      const std::int64_t bytes = node.collective->elements * static_cast<std::int64_t>(size_of(node.collective->dtype));
      smallest_gradient_ = std::min(smallest_gradient_, bytes);
      all_gradients_ += bytes;
      bucketed_ = kind_of(node);
    }
    worth_ = partitions_worth_trying(graph, costs_);
  }

  StepSchedule best() {
    const StepKnobs starts[] = {unpartitioned_knobs(graph_), bucket_knobs(graph_), by_level_knobs()};
    StepKnobs best = blocking_knobs();
    for (const StepKnobs& start : starts) {
      const StepKnobs top = climbed(start);
      if (seconds(top) < seconds(best)) best = top;
    }
    best = simplified(best);
    // The undone decisions may have made `best` slightly slower than a start.
    for (const StepKnobs& each : {starts[0], starts[1], starts[2], blocking_knobs()}) {
      if (seconds(each) < seconds(best)) best = each;
    }
    StepSchedule schedule = lower_step(graph_, costs_, best, slowdown_).schedule;
    schedule.blocking_seconds = seconds(blocking_knobs());
    schedule.unpartitioned_seconds = seconds(starts[0]);
    schedule.buckets_seconds = seconds(starts[1]);
    schedule.by_level_seconds = seconds(starts[2]);
    schedule.bound_seconds = step_bound(graph_, costs_.cluster());
    schedule.reasons = reasons(best);
    return schedule;
  }

 private:
  struct Decision {
    std::string name;
    std::function<void(StepKnobs&)> undo;
  };

  double seconds(const StepKnobs& knobs) {
    const auto found = known_.find(knobs);
    if (found != known_.end()) return found->second;
    return known_[knobs] = lower_step(graph_, costs_, knobs, slowdown_, false).schedule.predicted_seconds;
  }

  // The library's own choice of algorithms without a planner: two_level wherever there are two levels.
  StepKnobs by_level_knobs() const {
    StepKnobs knobs = bucket_knobs(graph_);
    for (const StepNode& node : graph_.nodes) {
      if (node.collective && costs_.has(*node.collective, Form::by_level))
        knobs.partitions[kind_of(node)].form = Form::by_level;
    }
    return knobs;
  }

  bool take_if_better(StepKnobs& knobs, const StepKnobs& candidate) {
    if (seconds(candidate) >= seconds(knobs) * (1 - least_gain)) return false;
    knobs = candidate;
    return true;
  }

  StepKnobs climbed(StepKnobs knobs) {
    knobs.priorities = true;
    for (int round = 0; round < 4; ++round) {
      bool better = try_orders(knobs);
      better |= try_partitions(knobs);
      better |= try_buckets(knobs);
      better |= try_gathers(knobs);
      if (!better) break;
    }
    return knobs;
  }

  static void put(StepKnobs& knobs, const CollectiveKind& kind, const Partition& partition) {
    knobs.partitions.erase(kind);
    if (partition != Partition()) knobs.partitions[kind] = partition;
  }

  // The layer tier, and the priorities on the links.
  bool try_orders(StepKnobs& knobs) {
    StepKnobs candidate = knobs;
    candidate.priorities = !knobs.priorities;
    const bool better = take_if_better(knobs, candidate);
    candidate = knobs;
    candidate.early = !knobs.early;
    candidate.postponed = same_postponed(graph_, knobs, candidate);
    return (activates_ && take_if_better(knobs, candidate)) || better;
  }

  // The operation tier: equal layers share the partition that is best in the whole step.
  bool try_partitions(StepKnobs& knobs) {
    bool better = false;
    for (const auto& [kind, partitions] : worth_) {
      const StepKnobs before = knobs;
      for (const Partition& partition : partitions) {
        StepKnobs candidate = before;
        put(candidate, kind, partition);
        better |= take_if_better(knobs, candidate);
      }
    }
    return better;
  }

  // The model tier: the partition of gradients, the size of buckets and the set of postponed ones are tried together, since
  // each changes the value of the others; then the size of the first bucket.
  bool try_buckets(StepKnobs& knobs) {
    if (buckets_ == 0) return false;
    bool better = false;
    const StepKnobs before = knobs;
    for (const Partition& partition : worth_.at(bucketed_)) {
      for (const std::int64_t bytes : bucket_sizes) {
        // Sizes up to the smallest gradient's leave each gradient by itself; sizes above twice the sum repeat a single
        // bucket.
        if (bytes > 0 && (bytes <= smallest_gradient_ || bytes / 2 > all_gradients_)) continue;
        StepKnobs candidate = before;
        put(candidate, bucketed_, partition);
        candidate.bucket_bytes = bytes;
        if (candidate.first_bucket_bytes >= bytes) candidate.first_bucket_bytes = 0;
        std::vector<std::vector<bool>> sets{{}};
        if (postpones_) sets = postponed_sets(graph_, costs_, candidate);
        for (const auto& postponed : sets) {
          candidate.postponed = postponed;
          better |= take_if_better(knobs, candidate);
        }
      }
    }
    for (const std::int64_t first : {std::int64_t{0}, mebibyte, knobs.bucket_bytes / 4}) {
      StepKnobs candidate = knobs;
      candidate.first_bucket_bytes = first < knobs.bucket_bytes ? first : 0;
      candidate.postponed = same_postponed(graph_, knobs, candidate);
      better |= take_if_better(knobs, candidate);
    }
    return better;
  }

  bool try_gathers(StepKnobs& knobs) {
    bool better = false;
    const StepKnobs before = knobs;
    for (int ahead = 0; gathers_ && ahead < graph_.most_live_gathers; ++ahead) {
      StepKnobs candidate = before;
      candidate.ahead = ahead;
      better |= take_if_better(knobs, candidate);
    }
    return better;
  }

  std::vector<Decision> decisions(const StepKnobs& knobs) const {
    std::vector<Decision> made;
    for (const auto& each : knobs.partitions) {
      const CollectiveKind kind = each.first;
      made.push_back({fmt::format("{}: {} rather than whole", to_string(kind), to_string(each.second)),
                      [kind](StepKnobs& undone) { undone.partitions.erase(kind); }});
    }
    const auto add = [&](bool decided, std::string name, std::function<void(StepKnobs&)> undo) {
      if (decided) made.push_back({std::move(name), std::move(undo)});
    };
    const double mebibytes = 1.0 / mebibyte;
    add(!knobs.postponed.empty(),
        fmt::format("{} of {} buckets gathered in the next forward rather than none",
                    std::count(knobs.postponed.begin(), knobs.postponed.end(), true), knobs.postponed.size()),
        [](StepKnobs& undone) { undone.postponed.clear(); });
    add(knobs.first_bucket_bytes > 0,
        fmt::format("a first bucket of {:.3g} MiB rather than one like the others",
                    static_cast<double>(knobs.first_bucket_bytes) * mebibytes),
        [](StepKnobs& undone) { undone.first_bucket_bytes = 0; });
    add(knobs.bucket_bytes > 0 && buckets_ > 0,
        fmt::format("buckets of {:.3g} MiB rather than each gradient by itself",
                    static_cast<double>(knobs.bucket_bytes) * mebibytes),
        [](StepKnobs& undone) { undone.bucket_bytes = undone.first_bucket_bytes = 0; });
    add(knobs.early, "inside layers, what communication waits for first, rather than in program order",
        [](StepKnobs& undone) { undone.early = false; });
    add(knobs.priorities, "activations before parameters before gradients, rather than in program order",
        [](StepKnobs& undone) { undone.priorities = false; });
    add(gathers_ && knobs.ahead > 0, fmt::format("{} gathers ahead of the one in use rather than none", knobs.ahead),
        [](StepKnobs& undone) { undone.ahead = 0; });
    return made;
  }

  StepKnobs without(const Decision& decision, const StepKnobs& knobs) const {
    StepKnobs undone = knobs;
    decision.undo(undone);
    if (!undone.postponed.empty()) undone.postponed = same_postponed(graph_, knobs, undone);
    return undone;
  }

  // The simplest knobs that are as good: fewer reasons to report, fewer things to go wrong. The decision whose undoing costs
  // least is undone first.
  StepKnobs simplified(StepKnobs knobs) {
    const double good = seconds(knobs) * (1 + least_benefit);
    for (;;) {
      StepKnobs simplest = knobs;
      double least = good;
      for (const Decision& decision : decisions(knobs)) {
        const StepKnobs undone = without(decision, knobs);
        if (seconds(undone) > least) continue;
        least = seconds(undone);
        simplest = undone;
      }
      if (simplest == knobs) return knobs;
      knobs = simplest;
    }
  }

  std::vector<std::string> reasons(const StepKnobs& knobs) {
    std::vector<std::string> lines;
    if (knobs == blocking_knobs()) lines.emplace_back("nothing tried is faster than collectives that block");
    for (const Decision& decision : decisions(knobs)) {
      const StepKnobs undone = without(decision, knobs);
      lines.push_back(
          fmt::format("{}: {:.3f} ms rather than {:.3f}", decision.name, seconds(knobs) * 1e3, seconds(undone) * 1e3));
    }
    lines.push_back(fmt::format("{} schedules were compared", known_.size()));
    return lines;
  }

  const StepGraph& graph_;
  CollectiveCosts costs_;
  const double slowdown_;
  bool gathers_ = false, activates_ = false, postpones_ = false;
  int buckets_ = 0;                                                 // upper bound: the number of bucketed gradients
  std::int64_t smallest_gradient_ = INT64_MAX, all_gradients_ = 0;  // bytes
  CollectiveKind bucketed_;
  std::map<CollectiveKind, std::vector<Partition>> worth_;
  std::map<StepKnobs, double> known_;
};

}  // namespace

StepSchedule plan_step(const StepGraph& graph, const StepCluster& cluster, double slowdown) {
  check(graph);
  return KnobSearch(graph, cluster, slowdown).best();
}

}  // namespace stretto
