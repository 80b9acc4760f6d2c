#include "stretto/job.hpp"

#include "collectives/job/rank_context.hpp"
#include "core/fail.hpp"

namespace stretto {

Ledger& Job::ledger() const { return context_->ledger(); }

std::string Job::write_flight(const std::string& directory) const {
  return context_->write_flight(directory, "the program asked for it");
}

void Job::set_timeout(double seconds) const {
  require(seconds > 0, "A timeout of {} s leaves no time; give more than 0.", seconds);
  context_->network().set_timeout(seconds);
}

double Job::timeout() const { return context_->network().timeout(); }

void Job::set_leave_timeout(double seconds) const {
  require(seconds >= 0, "No rank can wait for {} s; give 0 or more.", seconds);
  context_->set_leave_timeout(seconds);
}

void Job::abort(const std::string& reason) const { context_->job().abort(reason); }
void Job::check_ranks() const { context_->job().check(); }

}  // namespace stretto
