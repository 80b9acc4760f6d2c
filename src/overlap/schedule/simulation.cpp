// check() and simulate(): both run all stages.
#include <algorithm>
#include <limits>

#include "overlap/schedule/schedule_run.hpp"

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

}  // namespace

void check(const Schedule& schedule) {
  const ScheduleTimes times;
  ScheduleRun(schedule, times).run();
}

ScheduleSimulation simulate(const Schedule& schedule, const ScheduleTimes& times) {
  ScheduleRun run(schedule, times);
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
    result.under_way.push_back(most_open(schedule.lists[stage], ActionKind::backward_input));
    result.unfinished.push_back(most_open(schedule.lists[stage], ActionKind::backward_weight));
  }
  result.ideal = static_cast<double>(schedule.microbatches) * schedule.chunks *
                 (times.forward + times.backward_input + times.backward_weight);
  result.bubble = result.ideal > 0 ? result.step / result.ideal - 1 : 0;
  return result;
}

}  // namespace stretto
