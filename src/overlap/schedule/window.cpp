// Windows of steps that repeat.
#include "overlap/schedule/window.hpp"

#include <algorithm>

#include "core/fail.hpp"
#include "overlap/schedule/actions.hpp"
#include "overlap/schedule/limits.hpp"

namespace stretto {
namespace {

template <class F>
void for_each_action(const std::vector<ActionGroup>& list, F f) {
  for (std::size_t place = 0; place < list.size(); ++place) {
    for (const Action& action : list[place]) f(action, place);
  }
}

// To which window the actions of a stage's list belong.
class Belonging {
 public:
  Belonging(const Schedule& window, int stage)
      : window_(window),
        forwards_(static_cast<std::size_t>(window.chunks) * window.all_microbatches(), missing),
        ends_later_(static_cast<std::size_t>(window.chunks) * window.steps, false),
        sums_(ends_later_.size(), missing) {
    const std::vector<ActionGroup>& list = window.lists[stage];
    for_each_action(list, [&](const Action& action, std::size_t place) {
      require_numbers(window, stage, action);
      if (action.kind == ActionKind::forward) forwards_[index(action)] = place;
      if (action.kind == ActionKind::sum) sums_[step_index(action.chunk, action.microbatch)] = place;
    });
    for (int chunk = 0; chunk < window.chunks; ++chunk) {
      for (int i = 0; i < window.all_microbatches(); ++i) {
        const Action forward{ActionKind::forward, i, chunk};
        require(forwards_[index(forward)] != missing, "Stage {} never computes {}.", stage, to_string(forward));
      }
    }
    for_each_action(list, [&](const Action& action, std::size_t place) {
      if (!adds_weight_gradients(action.kind) || place > forwards_[index(action)]) return;
      ends_later_[step_index(action.chunk, action.microbatch / window.microbatches)] = true;
    });
  }

  // -1: to the window before, and an update in front of its sum to that before the sum's; 1: to the next.
  int operator()(const Action& action, std::size_t place) const {
    if (is_of_step(action.kind)) {
      const std::size_t step = step_index(action.chunk, action.microbatch);
      const bool is_late = action.kind == ActionKind::update && sums_[step] != missing && place < sums_[step];
      return (ends_later_[step] ? -1 : 0) - (is_late ? 1 : 0);
    }
    if (action.kind == ActionKind::forward) return 0;
    const bool comes_before = place < forwards_[index(action)];
    if (action.kind == ActionKind::receive_forward) return comes_before ? 0 : 1;
    return comes_before ? -1 : 0;
  }

 private:
  static constexpr std::size_t missing = -1;
  std::size_t index(const Action& action) const {
    return static_cast<std::size_t>(action.chunk) * window_.all_microbatches() + action.microbatch;
  }
  std::size_t step_index(int chunk, int step) const { return static_cast<std::size_t>(chunk) * window_.steps + step; }

  const Schedule& window_;
  std::vector<std::size_t> forwards_;  // places, by chunk and microbatch
  std::vector<bool> ends_later_;       // by chunk and step: whether a microbatch ends in the window behind it
  std::vector<std::size_t> sums_;      // places, by chunk and step
};

// The action of the window that comes `by` windows later.
Action moved(Action action, const Schedule& window, int by) {
  action.microbatch += by * (is_of_step(action.kind) ? window.steps : window.all_microbatches());
  if (reads_version(action.kind)) action.version += by * window.steps;
  return action;
}

bool has_any(const Schedule& schedule, ActionKind kind) {
  return std::any_of(schedule.lists.begin(), schedule.lists.end(), [kind](const std::vector<ActionGroup>& list) {
    return std::any_of(list.begin(), list.end(),
                       [kind](const ActionGroup& group) { return !group.empty() && group.front().kind == kind; });
  });
}

}  // namespace

bool has_updates(const Schedule& schedule) { return has_any(schedule, ActionKind::update); }
bool updates_jointly(const Schedule& schedule) { return has_any(schedule, ActionKind::sum); }

bool is_window(const Schedule& schedule) {
  bool plain = schedule.steps == 1 && !has_updates(schedule);
  for (const auto& list : schedule.lists) {
    for_each_action(list, [&](const Action& action, std::size_t) { plain = plain && action.version == 0; });
  }
  return !plain;
}

void require_numbers(const Schedule& schedule, int stage, const Action& action) {
  const bool of_step = is_of_step(action.kind);
  const int count = of_step ? schedule.steps : schedule.all_microbatches();
  require(action.microbatch >= 0 && action.microbatch < count && action.chunk >= 0 && action.chunk < schedule.chunks,
          "Stage {} has {}, but the {} are 0 to {} and its chunks 0 to {}.", stage, to_string(action),
          of_step ? "steps" : "microbatches", count - 1, schedule.chunks - 1);
  constexpr int most = 1 << 22;
  require(action.version >= -most && action.version <= most, "Stage {} has {}, but versions are {} to {}.", stage,
          to_string(action), -most, most);
}

Schedule repeated(const Schedule& window, int repetitions, int oldest) {
  require(repetitions >= 1, "A window cannot be repeated {} times; give at least 1.", repetitions);
  require_sizes(window);
  require(static_cast<int>(window.lists.size()) == window.stages, "A schedule of {} stages has {} lists.", window.stages,
          window.lists.size());
  Schedule result = window;
  result.steps = window.steps * repetitions;
  require_sizes(result);
  for (int stage = 0; stage < window.stages; ++stage) {
    const Belonging window_of(window, stage);
    std::vector<ActionGroup>& list = result.lists[stage];
    list.clear();
    for (int repetition = -1; repetition <= repetitions + 1; ++repetition) {
      for (std::size_t place = 0; place < window.lists[stage].size(); ++place) {
        require(!window.lists[stage][place].empty(), "Stage {} has an empty group; leave it out.", stage);
        ActionGroup group;
        for (const Action& action : window.lists[stage][place]) {
          const int its = repetition + window_of(action, place);
          if (its < 0 || its >= repetitions) continue;
          group.push_back(moved(action, window, its));
          if (reads_version(action.kind)) group.back().version = std::max(group.back().version, oldest);
        }
        if (!group.empty()) list.push_back(std::move(group));
      }
    }
  }
  return result;
}

Schedule window_with_messages(const Schedule& computations) {
  // The third of four repetitions has neither the beginning's messages nor the end's.
  constexpr int repetitions = 4, steady = 2;
  const Schedule many = with_messages(repeated(computations, repetitions));
  Schedule window = computations;
  const int all = window.all_microbatches();
  for (int stage = 0; stage < window.stages; ++stage) {
    const auto place_of_window = [&](int repetition) {
      return std::find_if(many.lists[stage].begin(), many.lists[stage].end(), [&](const ActionGroup& group) {
        return group.front().kind == ActionKind::forward && group.front().microbatch == repetition * all &&
               group.front().chunk == 0;
      });
    };
    std::vector<ActionGroup>& list = window.lists[stage];
    list.assign(place_of_window(steady), place_of_window(steady + 1));
    for (ActionGroup& group : list) {
      for (Action& action : group) {
        const int each = is_of_step(action.kind) ? window.steps : all;
        action = moved(action, window, -(action.microbatch / each));
      }
    }
  }
  return window;
}

std::vector<int> live_versions(const Schedule& schedule) {
  std::vector<int> result;
  for (const std::vector<ActionGroup>& list : schedule.lists) {
    int most = 1;
    for (int chunk = 0; chunk < schedule.chunks; ++chunk) {
      std::vector<std::size_t> made = {0}, last_read = {0};  // places in the list, by version
      const auto extend = [&](std::size_t version) { last_read.resize(std::max(last_read.size(), version + 1), 0); };
      for_each_action(list, [&](const Action& action, std::size_t place) {
        if (action.chunk != chunk) return;
        if (action.kind == ActionKind::update) made.push_back(place);
        if (!reads_version(action.kind)) return;
        extend(static_cast<std::size_t>(action.version));
        last_read[static_cast<std::size_t>(action.version)] = place;
      });
      extend(made.size() - 1);
      // A version lives until the next is made, or longer: until it has been read for the last time.
      std::vector<int> change(list.size() + 2, 0);
      for (std::size_t version = 0; version < made.size(); ++version) {
        const std::size_t replaced = version + 1 < made.size() ? made[version + 1] : list.size();
        ++change[made[version]];
        --change[std::max(replaced, last_read[version] + 1)];
      }
      int live = 0;
      for (const int each : change) most = std::max(most, live += each);
    }
    result.push_back(most);
  }
  return result;
}

std::vector<int> delays(const Schedule& schedule) {
  std::vector<int> result;
  for (const std::vector<ActionGroup>& list : schedule.lists) {
    int most = 0;
    for_each_action(list, [&](const Action& action, std::size_t) {
      if (reads_version(action.kind)) most = std::max(most, action.microbatch / schedule.microbatches - action.version);
    });
    result.push_back(most);
  }
  return result;
}

MeanDelay mean_delay(const Schedule& schedule, int stage) {
  require(stage >= 0 && stage < static_cast<int>(schedule.lists.size()), "A schedule of {} stages has no stage {}.",
          schedule.stages, stage);
  std::int64_t forward = 0, backward = 0;
  for_each_action(schedule.lists[stage], [&](const Action& action, std::size_t) {
    const std::int64_t missing = action.microbatch / schedule.microbatches - action.version;
    if (action.kind == ActionKind::forward) forward += missing;
    if (action.kind == ActionKind::backward || action.kind == ActionKind::backward_input) backward += missing;
  });
  const double count = static_cast<double>(schedule.chunks) * schedule.all_microbatches();
  return {static_cast<double>(forward) / count, static_cast<double>(backward) / count};
}

}  // namespace stretto
