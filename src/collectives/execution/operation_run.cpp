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

bool OperationRun::advance() {
  if (in_memory_) return in_memory_->advance();
  if (over_links_) return over_links_->advance();
  const bool moved = exchange_->advance();
  if (!exchange_->finished()) return moved;
  const PlannedCall& planned = *execution_.planned;
  begin_plan(exchange_->symmetric() ? planned.symmetric : planned.ordinary, Announcement::exchanged);
  return true;
}

bool OperationRun::finished() const { return in_memory_ ? in_memory_->finished() : over_links_ && over_links_->finished(); }

std::vector<int> OperationRun::awaited() const {
  return in_memory_ ? in_memory_->awaited() : over_links_ ? over_links_->awaited() : exchange_->awaited();
}

}  // namespace stretto
