#pragma once
#include <algorithm>
#include <vector>

#include "stretto/plan.hpp"
#include "stretto/planning/cost.hpp"

namespace stretto {

// The longest of all ranks' plans, where each round with messages waits for the one before.
inline Cost cost_of_plans(const std::vector<Plan>& plans) {
  Cost most;
  for (const Plan& plan : plans) {
    const Lane& lane = plan.lanes.at(0);
    Cost own;
    std::int64_t received = 0;
    double received_messages = 0;
    std::size_t at = 0;
    for (const std::size_t end : lane.round_ends) {
      bool talks = false;
      for (; at < end; ++at) {
        const Step& step = lane.steps[at];
        talks |= step.peer >= 0;
        if (step.kind == StepKind::send) own = own + Cost{0, 1, static_cast<double>(step.source.count), 0};
        if (step.kind == StepKind::recv || step.kind == StepKind::recv_reduce) {
          received += step.destination.count;
          ++received_messages;
        }
        if (step.kind == StepKind::copy || step.kind == StepKind::recv_reduce)
          own.work += static_cast<double>(step.destination.count);
        if (step.kind == StepKind::reduce) own.work += static_cast<double>(step.source.count - step.destination.count);
      }
      own.rounds += talks ? 1 : 0;
    }
    most = {std::max(most.rounds, own.rounds), std::max({most.messages, own.messages, received_messages}),
            std::max({most.sent, own.sent, static_cast<double>(received)}), std::max(most.work, own.work)};
  }
  return most;
}

}  // namespace stretto
