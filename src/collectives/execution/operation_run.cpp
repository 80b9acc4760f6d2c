#include "collectives/execution/operation_run.hpp"

namespace stretto {

OperationRun::OperationRun(const Execution& execution, OperationPrecedence* precedence)
    : execution_(execution), precedence_(precedence) {
  const PlannedCall& planned = *execution_.planned;
  if (!planned.depends_on_memory()) {
    begin_plan(planned.ordinary, Announcement::none);
  } else if (SharedMemoryRun::announces(execution_)) {
    begin_plan(planned.ordinary, Announcement::with_first_signal);
  } else {
    exchange_.emplace(execution_);
    // Links take bytes from any memory: the exchange only tells the others, and finds calls that do not match.
    const bool over_links = !shares_memory(planned.ordinary.plan->request.method.algorithm);
    if (over_links && !exchange_->symmetric()) begin_plan(planned.ordinary, Announcement::none);
  }
}

void OperationRun::begin_plan(const PlanVariant& variant, Announcement announcement) {
  variant_ = &variant;
  if (shares_memory(variant.plan->request.method.algorithm)) {
    in_memory_.emplace(execution_, variant, announcement);
  } else {
    over_links_.emplace(execution_, variant, precedence_);
  }
}

bool OperationRun::advance_others() {
  bool moved = exchanging() && exchange_->advance();
  if (over_links_ && !over_links_->finished()) moved |= over_links_->advance();
  if (variant_ != nullptr || exchanging()) return moved;
  const PlannedCall& planned = *execution_.planned;
  begin_plan(exchange_->symmetric() ? planned.symmetric : planned.ordinary, Announcement::exchanged);
  return true;
}

std::vector<int> OperationRun::awaited() const {
  if (in_memory_) return in_memory_->awaited();
  return over_links_ && !over_links_->finished() ? over_links_->awaited() : exchange_->awaited();
}

}  // namespace stretto
