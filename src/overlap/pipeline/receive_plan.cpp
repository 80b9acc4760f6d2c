#include "overlap/pipeline/receive_plan.hpp"

#include <algorithm>

#include "stretto/overlap/pipeline.hpp"

namespace stretto {

std::map<Route, ReceivePlan> receive_plans(const Schedule& schedule, int stage) {
  std::map<Route, ReceivePlan> plans;
  std::map<Route, std::size_t> unused;
  for (const ActionGroup& group : schedule.lists[static_cast<std::size_t>(stage)]) {
    for (const Action& action : group) {
      const int from = part_before(schedule, stage, action);
      if (is_send(action.kind) || !takes_input(action.kind) || from < 0 || from >= schedule.parts()) continue;
      const Route route{schedule.stage_of(from), stage, goes_forward(action.kind)};
      if (is_message(action.kind)) {
        ReceivePlan& plan = plans[route];
        plan.receives.push_back(action);
        plan.most = std::max(plan.most, ++unused[route] + 1);
      } else if (route.from != stage) {
        --unused[route];
      }
    }
  }
  return plans;
}

int most_messages(const Schedule& window, int stage) {
  const Schedule schedule = is_window(window) ? repeated(window, 3) : window;  // from an empty pipeline to an empty one
  std::size_t received = 0;
  for (const auto& [route, plan] : receive_plans(schedule, stage)) received += plan.most;
  bool sends_forward = false, sends_backward = false;
  for (const ActionGroup& group : schedule.lists[static_cast<std::size_t>(stage)]) {
    for (const Action& action : group) {
      sends_forward |= action.kind == ActionKind::send_forward;
      sends_backward |= action.kind == ActionKind::send_backward;
    }
  }
  return static_cast<int>(received) + (sends_forward ? 1 : 0) + (sends_backward ? 1 : 0);
}

}  // namespace stretto
