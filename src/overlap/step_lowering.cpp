// From knobs to tasks: what the simulation times is what the schedule says.
#include "overlap/step_lowering.hpp"

#include <algorithm>
#include <numeric>
#include <set>

#include "core/fail.hpp"
#include "overlap/layer_order.hpp"

namespace stretto {
namespace {

// Tasks [first, first + count).
struct Run {
  int first = -1, count = 0;
};

// One node's collective, or a bucket's.
struct Unit {
  std::vector<int> members;
  StepCollective collective;  // of all its members
  Partition partition;
  int bucket = -1;
  bool postponed = false;
  Run tasks, gathers;
};

class Lowering {
 public:
  Lowering(const StepGraph& graph, CollectiveCosts& costs, const StepKnobs& knobs)
      : graph_(graph), costs_(costs), knobs_(knobs), unit_of_(graph.nodes.size(), -1), runs_(graph.nodes.size()) {
    order_.resize(graph.nodes.size());
    std::iota(order_.begin(), order_.end(), 0);
    if (knobs.early) order_ = layer_order(graph);
    position_.resize(order_.size());
    for (std::size_t i = 0; i < order_.size(); ++i) position_[order_[i]] = static_cast<int>(i);
    first_use_.assign(order_.size(), static_cast<int>(order_.size()));
    last_use_.assign(order_.size(), -1);
    for (const int node : order_) {
      for (const StepDependency& each : graph.nodes[node].after) {
        if (each.steps_back != 0) continue;
        first_use_[each.node] = std::min(first_use_[each.node], position_[node]);
        last_use_[each.node] = std::max(last_use_[each.node], position_[node]);
      }
    }
  }

  StepSchedule lower(bool described) {
    make_units();
    postpone();
    cut_computation();
    for (const int node : order_) place(node);
    place_postponed_gathers();
    for (const int node : order_) {
      if (!graph_.nodes[node].collective) wait_of_computation(node);
    }
    for (Unit& unit : units_) wait_of_unit(unit);
    bound_gathers();
    if (knobs_.blocking) block();
    if (described) describe();
    schedule_.knobs = knobs_;
    return std::move(schedule_);
  }

 private:
  const StepNode& node(int i) const { return graph_.nodes[i]; }

  // ---- Which collectives there are

  void make_units() {
    int open = -1, bucket = 0;
    std::int64_t bytes = 0;
    for (const int i : order_) {
      if (!node(i).collective) continue;
      const StepCollective& own = *node(i).collective;
      const bool joins = open >= 0 && is_bucketed(node(i)) && may_join(units_[open], i);
      if (!joins) {
        units_.push_back({{}, own, partition_of(node(i))});
        units_.back().collective.elements = 0;
        if (own.measured_seconds) units_.back().collective.measured_seconds = 0;
      }
      const int which = joins ? open : static_cast<int>(units_.size()) - 1;
      Unit& unit = units_[which];
      unit_of_[i] = which;
      unit.members.push_back(i);
      unit.collective.elements += own.elements;
      if (own.measured_seconds) *unit.collective.measured_seconds += *own.measured_seconds;
      if (!is_bucketed(node(i))) continue;
      if (!joins) {
        unit.bucket = bucket++;
        bytes = 0;
      }
      bytes += own.elements * static_cast<std::int64_t>(size_of(own.dtype));
      const bool first = unit.bucket == 0 && knobs_.first_bucket_bytes > 0;
      open = bytes < (first ? knobs_.first_bucket_bytes : knobs_.bucket_bytes) ? which : -1;
    }
  }

  // Of one kind; and nothing before it waits for what is in the bucket.
  bool may_join(const Unit& bucket, int gradient) const {
    const StepCollective& own = *node(gradient).collective;
    const StepCollective& its = bucket.collective;
    const auto not_yet_used = [&](int member) { return first_use_[member] > position_[gradient]; };
    return own.group == its.group && own.dtype == its.dtype && own.gathers_as == its.gathers_as &&
           own.measured_seconds.has_value() == its.measured_seconds.has_value() &&
           std::all_of(bucket.members.begin(), bucket.members.end(), not_yet_used);
  }

  Partition partition_of(const StepNode& of) const {
    const auto found = knobs_.partitions.find(kind_of(of));
    const Partition partition = found == knobs_.partitions.end() ? Partition() : found->second;
    require(partition.chunks >= 1 && (partition.chunks & (partition.chunks - 1)) == 0,
            "{} cannot be cut into {} chunks; choose a power of two.", of.name, partition.chunks);
    return partition;
  }

  void postpone() {
    int buckets = 0;
    for (const Unit& unit : units_) buckets = std::max(buckets, unit.bucket + 1);
    for (Unit& unit : units_) {
      unit.postponed = unit.bucket >= 0 && unit.bucket >= buckets - knobs_.postponed;
      for (const int member : unit.postponed ? unit.members : std::vector<int>()) {
        require(can_be_postponed(graph_, member),
                "The gather of {} cannot be postponed, since what waits for it is no elementwise update; postpone less.",
                node(member).name);
      }
    }
  }

  // ---- Tasks

  bool is_row_wise(int collective) const { return node(collective).collective->traffic == Traffic::activation; }
  const Unit& unit(int collective) const { return units_[unit_of_[collective]]; }

  // Divisible computation goes in as many chunks as the activations that it makes or takes.
  void cut_computation() {
    for (std::size_t i = 0; i < order_.size(); ++i) runs_[i].count = 1;
    for (const int i : order_) {
      for (const StepDependency& each : node(i).after) {
        if (each.steps_back != 0) continue;
        if (goes_along(i, each.node)) runs_[i].count = std::max(runs_[i].count, unit(each.node).partition.chunks);
        if (goes_along(each.node, i)) runs_[each.node].count = std::max(runs_[each.node].count, unit(i).partition.chunks);
      }
    }
  }
  bool goes_along(int computation, int collective) const {
    return !node(computation).collective && node(computation).divisible && node(collective).collective &&
           is_row_wise(collective);
  }

  Run add_tasks(int count, const StepTask& task) {
    const Run run{static_cast<int>(schedule_.tasks.size()), count};
    schedule_.tasks.insert(schedule_.tasks.end(), count, task);
    return run;
  }

  void place(int i) {
    const StepNode& own = node(i);
    StepTask task;
    task.node = i;
    if (!own.collective) {
      const int chunks = runs_[i].count;
      task.seconds = own.seconds / ranks_that_share(i) / chunks + (chunks > 1 ? own.chunk_seconds : 0);
      runs_[i] = add_tasks(chunks, task);
      schedule_.compute_order.push_back(i);
      if (chunks > 1) schedule_.compute_chunks[i] = chunks;
      return;
    }
    Unit& its = units_[unit_of_[i]];
    if (i != its.members.back()) return;
    its.tasks = add_tasks(its.partition.chunks, task_of(its, stages_of(its)));
  }

  StepTask task_of(const Unit& of, const std::vector<StepStage>& stages) const {
    StepTask task;
    task.node = of.members.back();
    task.communicates = true;
    task.priority = priority_of(of.collective.traffic);
    for (const StepStage& stage : stages) task.stages.push_back(stage.links);
    return task;
  }
  Priority priority_of(Traffic traffic) const {
    if (!knobs_.priorities) return Priority::normal;
    return traffic == Traffic::activation  ? Priority::urgent
           : traffic == Traffic::parameter ? Priority::normal
                                           : Priority::background;
  }

  std::int64_t chunk_of(const Unit& of) const {
    return (of.collective.elements + of.partition.chunks - 1) / of.partition.chunks;
  }
  std::vector<StepStage> stages_of(const Unit& of) const {
    StepCollective collective = of.collective;
    if (!of.postponed) return costs_.stages(collective, chunk_of(of), of.partition.form);
    return half(collective, Collective::reduce_scatter, of);
  }
  std::vector<StepStage> gathers_of(const Unit& of) const {
    StepCollective collective = of.collective;
    collective.dtype = collective.gathers_as.value_or(collective.dtype);
    return half(collective, Collective::all_gather, of);
  }
  std::vector<StepStage> half(StepCollective collective, Collective kind, const Unit& of) const {
    collective.kind = kind;
    if (collective.measured_seconds) *collective.measured_seconds /= 2;
    const bool by_level = of.partition.form == Form::by_level;
    return costs_.stages(collective, chunk_of(of), by_level ? Form::by_level : Form::whole);
  }

  // In the order in which forward wants them.
  void place_postponed_gathers() {
    std::vector<std::pair<int, int>> wanted;  // position, unit
    for (std::size_t u = 0; u < units_.size(); ++u) {
      if (!units_[u].postponed) continue;
      int first = static_cast<int>(order_.size());
      for (const int i : order_) {
        for (const StepDependency& each : node(i).after) {
          if (each.steps_back == 1 && updates_of_.count({each.node, static_cast<int>(u)}) != 0) {
            first = std::min(first, position_[i]);
          }
        }
      }
      wanted.emplace_back(first, static_cast<int>(u));
    }
    std::sort(wanted.begin(), wanted.end());
    for (const auto& [position, u] : wanted) {
      StepTask task = task_of(units_[u], gathers_of(units_[u]));
      task.priority = priority_of(Traffic::parameter);
      units_[u].gathers = add_tasks(units_[u].partition.chunks, task);
    }
  }

  // How many ranks do an update together: those over which all of its gradients are scattered.
  int ranks_that_share(int i) {
    int ranks = 0;
    bool all = true;
    for (const StepDependency& each : node(i).after) {
      if (each.steps_back != 0 || !is_bucketed(node(each.node))) continue;
      const Unit& its = unit(each.node);
      all &= its.postponed;
      if (!its.postponed) continue;
      ranks = its.collective.group.size;
      updates_of_.insert({i, unit_of_[each.node]});
      postponed_by_[i].push_back(unit_of_[each.node]);
    }
    return all ? std::max(ranks, 1) : 1;
  }

  // ---- What waits for what

  void wait(int task, int other, int steps_back) {
    auto& after = schedule_.tasks[task].after;
    const StepDependency dependency{other, steps_back};
    if (std::find(after.begin(), after.end(), dependency) == after.end()) after.push_back(dependency);
  }
  void wait(int task, const Run& run, int steps_back) {
    for (int i = 0; i < run.count; ++i) wait(task, run.first + i, steps_back);
  }
  // For parameters that an update has changed by shares.
  void wait_for_gathers(int task, const StepDependency& update) {
    const auto found = postponed_by_.find(update.node);
    if (found == postponed_by_.end()) return;
    for (const int u : found->second) wait(task, units_[u].gathers, update.steps_back);
  }
  int last_task(int computation) const { return runs_[computation].first + runs_[computation].count - 1; }

  void wait_of_computation(int i) {
    const Run& own = runs_[i];
    for (const StepDependency& each : node(i).after) {
      if (!node(each.node).collective) {
        wait(own.first, last_task(each.node), each.steps_back);
        if (node(i).phase != Phase::update) wait_for_gathers(own.first, each);
        continue;
      }
      const Run& its = unit(each.node).tasks;
      if (each.steps_back != 0 || !goes_along(i, each.node)) {
        wait(own.first, its, each.steps_back);
        continue;
      }
      for (int chunk = 0; chunk < own.count; ++chunk) wait(own.first + chunk, its.first + chunk * its.count / own.count, 0);
    }
  }

  void wait_of_unit(const Unit& of) {
    const Run& own = of.tasks;
    for (const int member : of.members) {
      for (const StepDependency& each : node(member).after) {
        for (int chunk = 0; chunk < own.count; ++chunk) {
          const int task = own.first + chunk;
          if (node(each.node).collective) {
            wait(task, unit(each.node).tasks, each.steps_back);
          } else if (each.steps_back == 0 && goes_along(each.node, member)) {
            wait(task, runs_[each.node].first + (chunk + 1) * runs_[each.node].count / own.count - 1, 0);
          } else {
            wait(task, last_task(each.node), each.steps_back);
            wait_for_gathers(task, each);
          }
        }
      }
    }
    for (const auto& [update, gathered] : updates_of_) {
      if (&units_[gathered] != &of) continue;
      for (int chunk = 0; chunk < of.gathers.count; ++chunk) wait(of.gathers.first + chunk, last_task(update), 0);
    }
  }

  // A gather begins when the one so many before it has been used for the last time.
  void bound_gathers() {
    std::vector<int> gathers;
    for (const int i : order_) {
      if (node(i).collective && node(i).collective->traffic == Traffic::parameter && last_use_[i] >= 0) gathers.push_back(i);
    }
    const int count = static_cast<int>(gathers.size());
    require(count == 0 || (knobs_.ahead >= 0 && knobs_.ahead < graph_.most_live_gathers),
            "Gathers {} ahead and the one in use are more than the {} that may be live.", knobs_.ahead,
            graph_.most_live_gathers);
    for (int i = 0; i < count; ++i) {
      const int before = i - knobs_.ahead - 1;
      if (before < -count) continue;
      const int steps_back = before < 0 ? 1 : 0;
      const int user = order_[last_use_[gathers[before + steps_back * count]]];
      if (steps_back == 0 && last_use_[gathers[before]] > first_use_[gathers[i]]) continue;  // is held over this one's use
      if (node(user).collective) continue;
      const Run& run = unit(gathers[i]).tasks;
      for (int chunk = 0; chunk < run.count; ++chunk) wait(run.first + chunk, last_task(user), steps_back);
      if (steps_back == 0) bounded_by_[gathers[i]] = user;
    }
  }

  // Whatever the program says last is over before what it says next.
  void block() {
    std::vector<int> since;
    int computed = -1;
    const auto between = [&](const Run& run) {
      for (int task = run.first; task < run.first + run.count; ++task) {
        if (computed >= 0) wait(task, computed, 0);
        for (const int other : since) wait(task, other, 0);
      }
    };
    for (const int i : order_) {
      if (node(i).collective) {
        if (i != unit(i).members.back()) continue;
        between(unit(i).tasks);
        since.assign(1, unit(i).tasks.first + unit(i).tasks.count - 1);
        continue;
      }
      for (const int other : since) wait(runs_[i].first, other, 0);
      since.clear();
      computed = last_task(i);
    }
    const int first = runs_[schedule_.compute_order.front()].first;
    for (const int other : since) wait(first, other, 1);
  }

  // ---- What it says

  void describe() {
    for (const Unit& of : units_) {
      ScheduledCollective made;
      made.nodes = of.members;
      made.kind = kind_of(node(of.members.front()));
      made.name = of.bucket >= 0 ? fmt::format("bucket {}", of.bucket) : node(of.members.front()).name;
      made.partition = of.partition;
      made.stages = stages_of(of);
      if (of.postponed) made.postponed = gathers_of(of);
      made.method = method_of(of, made.stages);
      made.stream = name(of.collective.traffic);
      made.priority = priority_of(of.collective.traffic);
      made.bucket = of.bucket;
      made.bytes = of.collective.elements * static_cast<std::int64_t>(size_of(of.collective.dtype));
      int position = -1;
      const auto later = [&](int other) {
        if (!node(other).collective) position = std::max(position, position_[other]);
      };
      for (const int member : of.members) {
        for (const StepDependency& each : node(member).after) {
          if (each.steps_back == 0) later(each.node);
        }
        if (bounded_by_.count(member) != 0) later(bounded_by_.at(member));
      }
      made.issued_after = position < 0 ? -1 : order_[position];
      schedule_.collectives.push_back(std::move(made));
    }
  }

  static Method method_of(const Unit& of, const std::vector<StepStage>& stages) {
    if (stages.size() == 1) return stages.front().method;
    if (of.partition.form != Form::by_level || of.postponed) return Algorithm::automatic;  // several calls
    Method method(Algorithm::two_level);
    for (const StepStage& stage : stages) {
      (stage.level == StepStage::Level::between ? method.between : method.inside) = stage.method.algorithm;
    }
    method.pieces = of.partition.chunks;
    method.lanes = std::min(of.partition.chunks, most_lanes);
    return method;
  }

  const StepGraph& graph_;
  CollectiveCosts& costs_;
  const StepKnobs& knobs_;
  std::vector<int> order_, position_, first_use_, last_use_;  // of nodes; uses by position, within the step
  std::vector<int> unit_of_;
  std::vector<Run> runs_;  // of computation, by node
  std::vector<Unit> units_;
  std::set<std::pair<int, int>> updates_of_;      // update node, postponed unit
  std::map<int, std::vector<int>> postponed_by_;  // by update node
  std::map<int, int> bounded_by_;                 // by gather, the computation after which there is room
  StepSchedule schedule_;
};

}  // namespace

bool can_be_postponed(const StepGraph& graph, int gradient) {
  bool updates = false;
  for (const StepNode& node : graph.nodes) {
    for (const StepDependency& each : node.after) {
      if (each.node != gradient) continue;
      if (node.collective || node.phase != Phase::update || !node.elementwise) return false;
      updates = true;
    }
  }
  return updates;
}

StepSchedule lower_step(const StepGraph& graph, CollectiveCosts& costs, const StepKnobs& knobs, double slowdown,
                        bool described) {
  StepSchedule schedule = Lowering(graph, costs, knobs).lower(described);
  const StepTimeline timeline = simulate_step(schedule.tasks, {.slowdown = slowdown});
  schedule.predicted_seconds = timeline.seconds;
  schedule.computing_seconds = timeline.busy[0];
  schedule.inside_seconds = timeline.busy[1];
  schedule.between_seconds = timeline.busy[2];
  return schedule;
}

StepSchedule schedule_step(const StepGraph& graph, const StepCluster& cluster, const StepKnobs& knobs, double slowdown) {
  check(graph);
  CollectiveCosts costs(cluster);
  return lower_step(graph, costs, knobs, slowdown);
}

}  // namespace stretto
