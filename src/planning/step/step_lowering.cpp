// From knobs to tasks: the simulation times the same tasks that the schedule lists.
#include "planning/step/step_lowering.hpp"

#include <algorithm>
#include <set>

#include "core/fail.hpp"

namespace stretto {
namespace {

// Tasks [first, first + count).
struct TaskRange {
  int first = -1, count = 0;
  int last() const { return first + count - 1; }
};

class Lowering {
 public:
  Lowering(const StepGraph& graph, CollectiveCosts& costs, const StepKnobs& knobs)
      : graph_(graph),
        costs_(costs),
        knobs_(knobs),
        units_(graph, knobs),
        computation_(graph.nodes.size()),
        communication_(units_.units.size()),
        gathers_(units_.units.size()) {}

  LoweredStep lower(bool described) {
    cut_computation();
    for (const int i : units_.order) graph_.nodes[i].collective ? add_communication(i) : add_computation(i);
    add_postponed_gathers();
    for (const int i : units_.order) graph_.nodes[i].collective ? make_communication_wait(i) : make_computation_wait(i);
    make_gathers_wait();
    knobs_.blocking ? block() : bound_gathers();  // blocking gathers begin where the program has room for them
    bound_collectives();
    if (described) schedule_.collectives = scheduled_collectives(units_, costs_, rooms_);
    schedule_.knobs = knobs_;
    return {std::move(schedule_), std::move(tasks_)};
  }

 private:
  const StepNode& node(int i) const { return graph_.nodes[i]; }

  // Divisible computation is cut into as many chunks as the activations that it produces or consumes.
  void cut_computation() {
    const auto cut = [&](int computation, int collective) {
      if (!units_.go_together(computation, collective)) return;
      int& count = computation_[computation].count;
      count = std::max(count, units_.of(collective).partition.chunks);
    };
    for (TaskRange& tasks : computation_) tasks.count = 1;
    for (const int i : units_.order) {
      for (const StepDependency& each : node(i).after) {
        if (each.steps_back != 0) continue;
        cut(i, each.node);
        cut(each.node, i);
      }
    }
  }

  // ---- Tasks

  TaskRange add_tasks(int count, const StepTask& task) {
    const TaskRange tasks{static_cast<int>(tasks_.size()), count};
    tasks_.insert(tasks_.end(), count, task);
    return tasks;
  }

  void add_computation(int i) {
    const int chunks = computation_[i].count;
    StepTask task;
    task.node = i;
    task.seconds = node(i).seconds / ranks_that_share(i) / chunks + (chunks > 1 ? node(i).chunk_seconds : 0);
    computation_[i] = add_tasks(chunks, task);
    schedule_.compute_order.push_back(i);
    if (chunks > 1) schedule_.compute_chunks[i] = chunks;
  }

  void add_communication(int i) {
    const StepUnit& unit = units_.of(i);
    if (i != unit.members.back()) return;
    const Priority priority = units_.priority(unit.collective.payload);
    communication_[units_.unit_of[i]] = add_tasks(unit.partition.chunks, task_of(unit, unit.stages(costs_), priority));
  }

  static StepTask task_of(const StepUnit& unit, const std::vector<StepStage>& stages, Priority priority) {
    StepTask task;
    task.node = unit.members.back();
    task.communicates = true;
    task.priority = priority;
    for (const StepStage& stage : stages) task.stages.push_back(stage.links);
    return task;
  }

  // The number of ranks that share an update: it is shared if all of its gradients are scattered.
  int ranks_that_share(int i) {
    int ranks = 1;
    bool all = true;
    for (const StepDependency& each : node(i).after) {
      if (each.steps_back != 0 || !is_bucketed(node(each.node))) continue;
      const StepUnit& unit = units_.of(each.node);
      all &= unit.postponed;
      if (!unit.postponed) continue;
      ranks = unit.collective.group.size;
      shared_updates_.insert({i, units_.unit_of[each.node]});
      last_update_[units_.unit_of[each.node]] = i;
    }
    return all ? ranks : 1;
  }

  // In the order in which forward needs them.
  void add_postponed_gathers() {
    std::map<int, int> wanted;  // by unit, the position of the first node that needs it
    for (const int i : units_.order) {
      for (const StepDependency& each : node(i).after) {
        if (each.steps_back == 0) continue;
        for (const int unit : gathered_after(each.node)) wanted.insert({unit, units_.position[i]});
      }
    }
    std::vector<std::pair<int, int>> sorted;
    for (int unit = 0; unit < static_cast<int>(units_.units.size()); ++unit) {
      if (!units_.units[unit].postponed) continue;
      sorted.emplace_back(wanted.count(unit) != 0 ? wanted[unit] : static_cast<int>(graph_.nodes.size()), unit);
    }
    std::sort(sorted.begin(), sorted.end());
    for (const auto& [position, which] : sorted) {
      const StepUnit& unit = units_.units[which];
      StepTask task = task_of(unit, unit.gathers(costs_), units_.priority(unit.collective.payload));
      task.postponed = true;
      gathers_[which] = add_tasks(unit.partition.chunks, task);
      gathers_in_order_.push_back(which);
    }
  }

  std::vector<int> gathered_after(int update) const {
    std::vector<int> gathered;
    for (auto it = shared_updates_.lower_bound({update, 0}); it != shared_updates_.end() && it->first == update; ++it) {
      gathered.push_back(it->second);
    }
    return gathered;
  }

  // ---- Dependencies

  void wait(int task, int other, int steps_back) {
    auto& after = tasks_[task].after;
    const StepDependency dependency{other, steps_back};
    if (std::find(after.begin(), after.end(), dependency) == after.end()) after.push_back(dependency);
  }
  void wait(int task, const TaskRange& others, int steps_back) {
    for (int i = 0; i < others.count; ++i) wait(task, others.first + i, steps_back);
  }
  void wait(const TaskRange& tasks, const TaskRange& others, int steps_back) {
    for (int i = 0; i < tasks.count; ++i) wait(tasks.first + i, others, steps_back);
  }
  // The tasks wait for the computation's last task, since its tasks run in order; if for_parameters, also for the gathers of
  // parameters that the computation has updated by shares.
  void wait_for_computation(const TaskRange& tasks, const StepDependency& other, bool for_parameters) {
    wait(tasks, {computation_[other.node].last(), 1}, other.steps_back);
    if (!for_parameters) return;
    for (const int unit : gathered_after(other.node)) wait(tasks, gathers_[unit], other.steps_back);
  }

  void make_computation_wait(int i) {
    const TaskRange& own = computation_[i];
    const TaskRange first{own.first, 1};
    for (const StepDependency& each : node(i).after) {
      if (!node(each.node).collective) {
        wait_for_computation(first, each, node(i).phase != Phase::update);
        continue;
      }
      const TaskRange& its = communication_[units_.unit_of[each.node]];
      if (each.steps_back != 0 || !units_.go_together(i, each.node)) {
        wait(first, its, each.steps_back);
        continue;
      }
      for (int chunk = 0; chunk < own.count; ++chunk) wait(own.first + chunk, its.first + chunk * its.count / own.count, 0);
    }
  }

  void make_communication_wait(int i) {
    const TaskRange& own = communication_[units_.unit_of[i]];
    for (const StepDependency& each : node(i).after) {
      if (node(each.node).collective) {
        wait(own, communication_[units_.unit_of[each.node]], each.steps_back);
      } else if (each.steps_back != 0 || !units_.go_together(each.node, i)) {
        wait_for_computation(own, each, true);
      } else {
        const TaskRange& its = computation_[each.node];
        for (int chunk = 0; chunk < own.count; ++chunk) {
          wait(own.first + chunk, its.first + (chunk + 1) * its.count / own.count - 1, 0);
        }
      }
    }
  }

  // A postponed gather waits for its own updates and for those of all gathers before it: no gather starts before one that
  // forward needs earlier.
  void make_gathers_wait() {
    TaskRange last;
    for (const int unit : gathers_in_order_) {
      const auto update = last_update_.find(unit);
      if (update != last_update_.end()) last = {std::max(last.first, computation_[update->second].last()), 1};
      wait(gathers_[unit], last, 0);
    }
  }

  // A gather begins after the last use of the gather that lies `ahead` + 1 before it.
  void bound_gathers() {
    std::vector<int> gathers;
    for (const int i : units_.order) {
      const auto& collective = node(i).collective;
      if (collective && collective->payload == Payload::parameter && units_.last_use[i] >= 0) gathers.push_back(i);
    }
    const int count = static_cast<int>(gathers.size());
    require(count == 0 || (knobs_.ahead >= 0 && knobs_.ahead < graph_.most_live_gathers),
            "{} gathers ahead and the one in use are more than the {} that may be live.", knobs_.ahead,
            graph_.most_live_gathers);
    for (int i = 0; i < count; ++i) {
      const int before = i - knobs_.ahead - 1;
      if (before < -count) continue;
      const int steps_back = before < 0 ? 1 : 0;
      const int other = gathers[before + steps_back * count];
      const int user = units_.order[units_.last_use[other]];
      const bool is_held = steps_back == 0 && units_.last_use[other] >= units_.first_use[gathers[i]];
      if (is_held || node(user).collective) continue;
      wait(communication_[units_.unit_of[gathers[i]]], {computation_[user].last(), 1}, steps_back);
      if (steps_back == 0) rooms_[gathers[i]] = user;
    }
  }

  // Keeps collectives near their own step. A collective without dependencies would run for all steps at once, and one
  // without dependents would pile up; so would one whose only dependencies or dependents are collectives.
  void bound_collectives() {
    const auto& order = schedule_.compute_order;
    require(!order.empty(), "A step of {} collectives computes nothing.", units_.units.size());
    std::vector<bool> is_wanted(tasks_.size(), false);
    for (const StepTask& task : tasks_) {
      for (const StepDependency& each : task.after) is_wanted[each.node] = true;
    }
    for (const TaskRange& collective : communication_) {
      const TaskRange last{computation_[order.back()].last(), 1};
      wait(collective, last, tasks_[collective.first].after.empty() ? 1 : 2);
      for (int task = collective.first; task <= collective.last(); ++task) {
        wait(computation_[order.front()].first, task, is_wanted[task] ? 2 : 1);
      }
    }
  }

  // Every node ends before the next one in program order begins.
  void block() {
    TaskRange computed, communicated;
    for (const int i : units_.order) {
      if (!node(i).collective) {
        wait(computation_[i].first, communicated, 0);
        computed = {computation_[i].last(), 1};
        communicated = {};
      } else if (i == units_.of(i).members.back()) {
        const TaskRange& own = communication_[units_.unit_of[i]];
        wait(own, computed, 0);
        wait(own, communicated, 0);
        communicated = own;
      }
    }
    wait(computation_[schedule_.compute_order.front()].first, communicated, 1);
  }

  const StepGraph& graph_;
  CollectiveCosts& costs_;
  const StepKnobs& knobs_;
  const StepUnits units_;
  std::vector<TaskRange> computation_;              // by node
  std::vector<TaskRange> communication_, gathers_;  // by unit; gathers_: its postponed gather
  std::set<std::pair<int, int>> shared_updates_;    // update node, postponed unit
  std::map<int, int> last_update_;                  // by postponed unit, a node
  std::vector<int> gathers_in_order_;               // units
  std::map<int, int> rooms_;                        // by gather, the computation after which memory for it is free
  StepSchedule schedule_;
  std::vector<StepTask> tasks_;
};

}  // namespace

LoweredStep lower_step(const StepGraph& graph, CollectiveCosts& costs, const StepKnobs& knobs, double slowdown,
                       bool described) {
  LoweredStep lowered = Lowering(graph, costs, knobs).lower(described);
  const StepTimeline timeline = simulate_step(lowered.tasks, {.slowdown = slowdown});
  StepSchedule& schedule = lowered.schedule;
  schedule.predicted_seconds = timeline.seconds;
  schedule.computing_seconds = timeline.busy[0];
  schedule.inside_seconds = timeline.busy[1];
  schedule.between_seconds = timeline.busy[2];
  return lowered;
}

}  // namespace stretto
