#include "planning/layout/shared_cores.hpp"

#include <algorithm>
#include <limits>

#include "core/fail.hpp"
#include "overlap/schedule/actions.hpp"

namespace stretto {
namespace {

constexpr double never = std::numeric_limits<double>::infinity();

// Advances all stages together, from one end of a computation or arrival of a message to the next.
class SharedRun {
 public:
  SharedRun(const Schedule& schedule, const std::vector<ScheduleTimes>& times, const StagesOnCores& sharing)
      : schedule_(schedule), times_(times), sharing_(sharing), stages_(static_cast<std::size_t>(schedule.stages)) {
    const auto microbatches = static_cast<std::size_t>(schedule.all_microbatches());
    arrivals_.resize(static_cast<std::size_t>(schedule.parts()) * microbatches);
    for (std::size_t i = 0; i < microbatches; ++i) {
      at(0, static_cast<int>(i)).input = 0;
      at(schedule.parts() - 1, static_cast<int>(i)).gradient = 0;
    }
  }

  double seconds() {
    while (begin_computations()) {
      const double next = next_event();
      require(next < never, "Stages of the schedule {} wait for each other for ever; check() says which.", schedule_.name);
      for (int stage = 0; stage < schedule_.stages; ++stage) {
        if (of(stage).computes) of(stage).left -= (next - now_) * rate(stage);
      }
      for (int stage = 0; stage < schedule_.stages; ++stage) {
        if (of(stage).computes && of(stage).left <= 1e-12 * next) end_computation(stage, next);
      }
      now_ = next;
    }
    return now_;
  }

 private:
  struct Stage {
    std::size_t place = 0;  // in its list
    bool computes = false;
    double left = 0;           // of the computation, in seconds of a core of its own
    double waits_for = never;  // when what the next computation needs will be there
  };
  struct Arrivals {  // of a microbatch at a part
    double input = never, gradient = never;
  };

  Stage& of(int stage) { return stages_[static_cast<std::size_t>(stage)]; }
  Arrivals& at(int part, int microbatch) {
    return arrivals_[static_cast<std::size_t>(part) * static_cast<std::size_t>(schedule_.all_microbatches()) +
                     static_cast<std::size_t>(microbatch)];
  }
  const Action& action_of(int stage) { return schedule_.lists[static_cast<std::size_t>(stage)][of(stage).place].front(); }

  // Returns whether any stage has work left.
  bool begin_computations() {
    bool works = false;
    for (int stage = 0; stage < schedule_.stages; ++stage) {
      Stage& its = of(stage);
      const auto& list = schedule_.lists[static_cast<std::size_t>(stage)];
      const auto takes_no_time = [](ActionKind kind) { return is_message(kind) || is_of_step(kind); };
      while (its.place < list.size() && takes_no_time(list[its.place].front().kind)) ++its.place;
      if (its.place == list.size()) continue;
      works = true;
      if (its.computes) continue;
      const Action& action = action_of(stage);
      const int part = schedule_.part_of(stage, action.chunk);
      const ScheduleTimes& times = times_[static_cast<std::size_t>(part)];
      const Arrivals& arrived = at(part, action.microbatch);
      its.waits_for = now_;
      if (action.kind == ActionKind::forward) {
        its.waits_for = arrived.input;
        its.left = times.forward;
      } else if (action.kind == ActionKind::backward_weight) {
        its.left = times.backward_weight;
      } else {
        its.waits_for = arrived.gradient;
        its.left = times.backward_input + (action.kind == ActionKind::backward ? times.backward_weight : 0);
      }
      its.computes = its.waits_for <= now_;
    }
    return works;
  }

  // The share of a core that a stage has while it computes.
  double rate(int stage) {
    const int first = stage / sharing_.stages * sharing_.stages;
    int computing = 0;
    for (int other = first; other < std::min(first + sharing_.stages, schedule_.stages); ++other) {
      if (of(other).computes) ++computing;
    }
    return std::min(1.0, sharing_.at_a_time / computing);
  }

  double next_event() {
    double next = never;
    for (int stage = 0; stage < schedule_.stages; ++stage) {
      const Stage& its = of(stage);
      if (its.place == schedule_.lists[static_cast<std::size_t>(stage)].size()) continue;
      next = std::min(next, its.computes ? now_ + its.left / rate(stage) : its.waits_for);
    }
    return next;
  }

  void end_computation(int stage, double now) {
    const Action& action = action_of(stage);
    of(stage).computes = false;
    ++of(stage).place;
    if (action.kind == ActionKind::backward_weight) return;
    const int next = part_after(schedule_, stage, action);
    if (next < 0 || next >= schedule_.parts()) return;
    const int part = schedule_.part_of(stage, action.chunk);
    const double message = schedule_.stage_of(next) == stage ? 0 : times_[static_cast<std::size_t>(part)].message;
    Arrivals& there = at(next, action.microbatch);
    (action.kind == ActionKind::forward ? there.input : there.gradient) = now + message;
  }

  const Schedule& schedule_;
  const std::vector<ScheduleTimes>& times_;
  StagesOnCores sharing_;
  std::vector<Stage> stages_;
  std::vector<Arrivals> arrivals_;  // by part and microbatch
  double now_ = 0;
};

}  // namespace

double seconds_on_shared_cores(const Schedule& schedule, const std::vector<ScheduleTimes>& of_parts,
                               const StagesOnCores& sharing) {
  return SharedRun(schedule, of_parts, sharing).seconds();
}

}  // namespace stretto
