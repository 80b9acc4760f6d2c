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
    // Links take bytes from any memory: the exchange then only tells the others, and finds calls that do not match.
    begins_early_ = !exchange_->symmetric() && !shares_memory(planned.ordinary.plan->request.method.algorithm);
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
  bool moved = over_links_ && !over_links_->finished() && over_links_->advance();
  if (exchanging()) moved |= exchange_->advance(!begins_early_);
  if (variant_ != nullptr || (exchanging() && !(begins_early_ && exchange_->posted()))) return moved;
  const PlannedCall& planned = *execution_.planned;
  begin_plan(exchange_->symmetric() ? planned.symmetric : planned.ordinary, Announcement::exchanged);
  return true;
}

std::vector<int> OperationRun::awaited() const {
  if (in_memory_) return in_memory_->awaited();
  return over_links_ && !over_links_->finished() ? over_links_->awaited() : exchange_->awaited();
}

}  // namespace stretto
