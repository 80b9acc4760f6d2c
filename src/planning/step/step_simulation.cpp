#include "planning/step/step_simulation.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <tuple>

#include "core/fail.hpp"

namespace stretto {

const char* name(StepResource resource) {
  switch (resource) {
    case StepResource::compute: return "compute";
    case StepResource::inside: return "inside";
    default: return "between";
  }
}

namespace {

constexpr double never = std::numeric_limits<double>::infinity();
constexpr int most_steps = 24;

// The tasks' dependencies reversed, once for all steps.
struct Dependents {
  explicit Dependents(const std::vector<StepTask>& tasks) : of(tasks.size()) {
    const int count = static_cast<int>(tasks.size());
    for (int i = 0; i < count; ++i) {
      for (const StepDependency& each : tasks[i].after) {
        require(each.node >= 0 && each.node < count && each.steps_back >= 0,
                "Task {} waits for task {} of {}, {} steps back.", i, each.node, count, each.steps_back);
        of[each.node].push_back({i, each.steps_back});
      }
    }
  }
  std::vector<std::vector<StepDependency>> of;
};

// A number of steps, unrolled: instance step * tasks + task.
class UnrolledSteps {
 public:
  UnrolledSteps(const std::vector<StepTask>& tasks, const Dependents& dependents, int steps,
                const StepSimulationOptions& options)
      : tasks_(tasks), dependents_(dependents), steps_(steps), count_(static_cast<int>(tasks.size())), options_(options) {
    waits_for_.resize(static_cast<std::size_t>(steps) * tasks.size());
    stage_.assign(waits_for_.size(), 0);
    parts_.assign(waits_for_.size(), 0);
    for (int task = 0; task < count_; ++task) {
      if (!tasks[task].communicates) computing_order_.push_back(task);
      for (int step = 0; step < steps; ++step) {
        for (const StepDependency& each : tasks[task].after) waits_for_[at(step, task)] += step >= each.steps_back ? 1 : 0;
      }
    }
    computed_.assign(steps, 0);
  }

  void run() {
    for (int i = 0; i < static_cast<int>(waits_for_.size()); ++i) {
      if (waits_for_[i] == 0) ready(i);
    }
    for (;;) {
      begin_what_can();
      const double next = std::min({computing_end(), links_[0].end, links_[1].end});
      if (next == never) break;
      advance(next);
    }
    require(done_ == waits_for_.size(), "A training step's tasks wait for each other: {} of {} can never begin.",
            waits_for_.size() - done_, waits_for_.size());
  }

  // The end of each step's last computation.
  const std::vector<double>& computed() const { return computed_; }
  double first_begin_of_last() const { return last_begin_; }
  std::vector<StepTimeline::Piece> pieces;

 private:
  // The order on a link: negated priority, step, first chunk of the node, stage, task.
  using LinkTurn = std::tuple<int, int, int, int, int>;
  struct Link {
    std::set<LinkTurn> waiting;
    int instance = -1;
    double begin = 0, end = never;
  };

  std::size_t at(int step, int task) const { return static_cast<std::size_t>(step) * count_ + task; }
  const StepTask& task_of(int instance) const { return tasks_[instance % count_]; }

  void ready(int instance) {
    if (task_of(instance).communicates) begin_stage(instance);
  }

  void begin_stage(int instance) {
    const StepTask& task = task_of(instance);
    while (stage_[instance] < static_cast<int>(task.stages.size())) {
      const LinkSeconds& stage = task.stages[stage_[instance]];
      const double seconds[] = {stage.inside, stage.between};
      for (int i = 0; i < 2; ++i) {
        if (seconds[i] <= 0) continue;
        ++parts_[instance];
        links_[i].waiting.insert(turn_of(instance));
      }
      if (parts_[instance] > 0) return;
      ++stage_[instance];
    }
    finish(instance);
  }

  LinkTurn turn_of(int instance) const {
    int first = instance % count_;
    while (first > 0 && tasks_[first - 1].communicates && tasks_[first - 1].node == tasks_[first].node &&
           tasks_[first - 1].postponed == tasks_[first].postponed)
      --first;
    return {-static_cast<int>(task_of(instance).priority), instance / count_, first, stage_[instance], instance % count_};
  }

  void finish(int instance) {
    ++done_;
    const int step = instance / count_;
    for (const StepDependency& each : dependents_.of[instance % count_]) {
      if (step + each.steps_back >= steps_) continue;
      const std::size_t other = at(step + each.steps_back, each.node);
      if (--waits_for_[other] == 0) ready(static_cast<int>(other));
    }
  }

  void begin_what_can() {
    for (;;) {
      const std::size_t done = done_;
      begin_computing();
      if (done == done_) break;  // a task of no duration may let another begin
    }
    for (Link& link : links_) {
      if (link.instance >= 0 || link.waiting.empty()) continue;
      const LinkTurn turn = *link.waiting.begin();
      link.waiting.erase(link.waiting.begin());
      link.instance = std::get<1>(turn) * count_ + std::get<4>(turn);
      const LinkSeconds& stage = task_of(link.instance).stages[stage_[link.instance]];
      link.begin = now_;
      link.end = now_ + (&link == &links_[0] ? stage.inside : stage.between);
    }
  }

  void begin_computing() {
    if (computing_ >= 0 || next_computation_ == computing_order_.size() * steps_) return;
    const int step = static_cast<int>(next_computation_ / computing_order_.size());
    const std::size_t position = next_computation_ % computing_order_.size();
    const std::size_t instance = at(step, computing_order_[position]);
    if (waits_for_[instance] > 0) return;
    ++next_computation_;
    computing_ = static_cast<int>(instance);
    computing_begin_ = now_;
    work_left_ = task_of(computing_).seconds;
    if (position == 0 && step == steps_ - 1) last_begin_ = now_;
    if (work_left_ <= 0) finish_computing();
  }

  double pace() const {
    return links_[0].instance >= 0 || links_[1].instance >= 0 ? 1 + options_.slowdown : 1;  // seconds for a second of work
  }
  double computing_end() const { return computing_ < 0 ? never : now_ + work_left_ * pace(); }

  void finish_computing() {
    const int instance = std::exchange(computing_, -1);
    const int step = instance / count_;
    computed_[step] = now_;
    note(instance, 0, StepResource::compute, computing_begin_);
    finish(instance);
  }

  void advance(double next) {
    const bool computed = computing_ >= 0 && computing_end() <= next;
    if (computing_ >= 0) work_left_ -= (next - now_) / pace();
    now_ = next;
    for (int i = 0; i < 2; ++i) {
      Link& link = links_[i];
      if (link.end > now_) continue;
      const int instance = std::exchange(link.instance, -1);
      link.end = never;
      note(instance, stage_[instance], i == 0 ? StepResource::inside : StepResource::between, link.begin);
      if (--parts_[instance] > 0) continue;
      ++stage_[instance];
      begin_stage(instance);
    }
    if (computed) finish_computing();
  }

  void note(int instance, int stage, StepResource resource, double begin) {
    if (options_.timeline && instance / count_ >= steps_ - 2) {
      pieces.push_back({instance / count_ - (steps_ - 2), instance % count_, stage, resource, begin, now_});
    }
  }

  const std::vector<StepTask>& tasks_;
  const Dependents& dependents_;
  const int steps_, count_;
  const StepSimulationOptions options_;
  // By instance: dependencies that are not done, the current stage, and the links that still serve that stage.
  std::vector<int> waits_for_, stage_, parts_;
  std::vector<int> computing_order_;
  std::size_t next_computation_ = 0, done_ = 0;
  Link links_[2];
  double now_ = 0, computing_begin_ = 0, work_left_ = 0, last_begin_ = 0;
  int computing_ = -1;
  std::vector<double> computed_;
};

}  // namespace

StepTimeline simulate_step(const std::vector<StepTask>& tasks, const StepSimulationOptions& options) {
  StepTimeline result;
  bool computes = false;
  for (const StepTask& task : tasks) {
    computes |= !task.communicates;
    result.busy[0] += task.communicates ? 0 : task.seconds;
    for (const LinkSeconds& stage : task.stages) {
      result.busy[1] += stage.inside;
      result.busy[2] += stage.between;
    }
  }
  require(computes, "A training step of {} tasks computes nothing; a step is measured by its computations.", tasks.size());
  require(options.slowdown >= 0, "Computing cannot be {} times slower beside communication.", options.slowdown);
  const Dependents dependents(tasks);
  for (int steps = 3; steps <= most_steps; steps *= 2) {
    UnrolledSteps simulated(tasks, dependents, steps, options);
    simulated.run();
    const std::vector<double>& ends = simulated.computed();
    const double last = ends[steps - 1] - ends[steps - 2];
    const double before = ends[steps - 2] - ends[steps - 3];
    // Two steps may be alike before the work that they leave to the next has piled up; in steady state no step is shorter
    // than its busiest link.
    const bool steady = std::abs(last - before) <= 1e-9 * last && last >= result.busiest_link() * (1 - 1e-9);
    if (!steady && 2 * steps <= most_steps) continue;
    const int half = steps / 2;
    const double mean = (ends[steps - 1] - ends[half - 1]) / (steps - half);
    result.seconds = steady ? last : std::max(mean, result.busiest_link());
    result.last_begin = simulated.first_begin_of_last();
    result.pieces = std::move(simulated.pieces);
    break;
  }
  return result;
}

}  // namespace stretto
