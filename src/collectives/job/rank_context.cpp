#include "collectives/job/rank_context.hpp"

#include <exception>

#include "core/setting_values.hpp"

namespace stretto {

RankContext::RankContext(std::unique_ptr<Job> job, bool may_pin)
    : job_(std::move(job)),
      checks_calls_(number_setting("STRETTO_CHECK") != 0),
      exceptions_at_start_(std::uncaught_exceptions()) {
  try {
    network_ = std::make_unique<Network>(*job_, may_pin);
    selector_ = std::make_unique<Selector>(*job_, *network_);
  } catch (const std::exception& error) {
    job_->abort(error.what());
    throw;
  }
}

RankContext::~RankContext() {
  if (std::uncaught_exceptions() > exceptions_at_start_) job_->abort("an exception ended it.");
  job_->leave(leave_timeout_);
}

}  // namespace stretto
