// check() and simulate(): both run all stages.
#include <algorithm>
#include <limits>
#include <optional>

#include "core/fail.hpp"
#include "overlap/schedule/limits.hpp"
#include "overlap/schedule/schedule_run.hpp"
#include "overlap/schedule/window.hpp"

namespace stretto {
namespace {

// The most that were begun and not ended, in the order of a stage's list.
int most_open(const std::vector<ActionGroup>& list, ActionKind closes) {
  int open = 0, most = 0;
  for (const ActionGroup& group : list) {
    const ActionKind kind = group.front().kind;
    if (kind == ActionKind::forward) most = std::max(most, ++open);
    if (kind == ActionKind::backward || kind == closes) --open;
  }
  return most;
}

std::size_t parts_of(const Schedule& schedule) {
  require_sizes(schedule);
  return static_cast<std::size_t>(schedule.parts());
}

// Empty for one step that leaves the update to the caller, which begins and ends with an empty pipeline.
std::optional<Schedule> repeated_window(const Schedule& schedule, int repetitions) {
  if (has_updates(schedule)) return repeated(schedule, repetitions);
  require(!updates_jointly(schedule), "Schedule {} has a sum and no update; put one behind each sum on every stage.",
          schedule.name);
  require(schedule.steps == 1, "A window of {} steps has no update; put one behind each step's backwards on every stage.",
          schedule.steps);
  return {};
}

// Of a step: the longest time between the beginnings of the last two repetitions on a stage.
double steady_step(const Schedule& window, const std::vector<SimulatedAction>& actions, int repetitions) {
  constexpr double never = std::numeric_limits<double>::infinity();
  std::vector<std::vector<double>> begins(window.stages, std::vector<double>(repetitions, never));
  for (const SimulatedAction& each : actions) {
    if (each.action.kind != ActionKind::forward) continue;
    double& begin = begins[each.stage][each.action.microbatch / window.all_microbatches()];
    begin = std::min(begin, each.begin);
  }
  double longest = 0;
  for (const std::vector<double>& its : begins) longest = std::max(longest, its[repetitions - 1] - its[repetitions - 2]);
  return longest / window.steps;
}

}  // namespace

void check(const Schedule& schedule) {
  require(
      schedule.stashes || is_window(schedule),
      "Schedule {} says 'stash none' and is no window that updates the weights, so that there is nothing to stash; leave "
      "it out.",
      schedule.name);
  const std::vector<ScheduleTimes> times(parts_of(schedule));
  const std::optional<Schedule> in_turn = repeated_window(schedule, 3);
  ScheduleRun(in_turn ? *in_turn : schedule, times).run();
}

ScheduleSimulation simulate(const Schedule& schedule, const ScheduleTimes& times) {
  return simulate(schedule, std::vector<ScheduleTimes>(parts_of(schedule), times));
}

ScheduleSimulation simulate(const Schedule& schedule, const std::vector<ScheduleTimes>& of_parts) {
  constexpr int repetitions = 4;
  const std::optional<Schedule> in_turn = repeated_window(schedule, repetitions);
  const Schedule& lists = in_turn ? *in_turn : schedule;
  ScheduleRun run(lists, of_parts);
  run.run();
  ScheduleSimulation result;
  result.actions = run.actions();
  std::stable_sort(result.actions.begin(), result.actions.end(),
                   [](const SimulatedAction& a, const SimulatedAction& b) { return a.begin < b.begin; });
  std::vector<double> begins(schedule.stages, std::numeric_limits<double>::infinity());
  std::vector<double> ends(schedule.stages, 0);
  for (const SimulatedAction& each : result.actions) {
    if (is_message(each.action.kind)) continue;
    begins[each.stage] = std::min(begins[each.stage], each.begin);
    ends[each.stage] = std::max(ends[each.stage], each.end);
  }
  for (int stage = 0; stage < schedule.stages; ++stage) {
    result.step = std::max(result.step, ends[stage] - begins[stage]);
    result.last_end = std::max(result.last_end, ends[stage]);
    result.under_way.push_back(most_open(lists.lists[stage], ActionKind::backward_input));
    result.unfinished.push_back(most_open(lists.lists[stage], ActionKind::backward_weight));
    double computing = 0;
    for (int chunk = 0; chunk < schedule.chunks; ++chunk) computing += of_parts[schedule.part_of(stage, chunk)].all();
    result.ideal = std::max(result.ideal, schedule.microbatches * computing);
  }
  if (in_turn) result.step = steady_step(schedule, result.actions, repetitions);
  result.versions = live_versions(lists);
  result.delay = delays(schedule);
  result.bubble = result.ideal > 0 ? result.step / result.ideal - 1 : 0;
  return result;
}

}  // namespace stretto
