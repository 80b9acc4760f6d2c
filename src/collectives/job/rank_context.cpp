#include "collectives/job/rank_context.hpp"

#include <algorithm>
#include <cstring>
#include <exception>
#include <random>

#include "collectives/job/flights_on_signal.hpp"
#include "collectives/ledger/flight.hpp"
#include "core/fail.hpp"
#include "core/log.hpp"
#include "core/setting_values.hpp"

namespace stretto {

namespace {

std::uint64_t random_number() {
  std::random_device device;
  return std::uint64_t{device()} << 32 | device();
}

}  // namespace

RankContext::RankContext(std::shared_ptr<JobControl> job, bool may_pin, std::string name)
    : job_(std::move(job)),
      name_(std::move(name)),
      checks_calls_(number_setting("STRETTO_CHECK") != 0),
      exceptions_at_start_(std::uncaught_exceptions()),
      notice_([this] { job_->abort("an exception ended its work; its own message says which."); }) {
  try {
    network_ = std::make_unique<Network>(*job_, may_pin);
    selector_ = std::make_unique<Selector>(*job_, *network_);
    meet();
  } catch (const std::exception& error) {
    job_->abort(error.what());
    throw;
  }
  job_->observe(this);
  add_to_flights_on_signal(*this);
}

void RankContext::meet() {
  struct {
    Area area;
    std::uint64_t job_name = 0;
  } mine{network_->segment().reserve(Links::area_bytes(job_->size())), random_number()}, theirs;
  const auto* bytes = reinterpret_cast<const std::byte*>(&mine);
  for (const Bytes& part : job_->exchange(Bytes(bytes, bytes + sizeof mine))) {
    ensure(part.size() == sizeof theirs, "A rank told {} bytes about its area.", part.size());
    std::memcpy(&theirs, part.data(), sizeof theirs);
    world_.areas.push_back(theirs.area);
    if (world_.job_ranks.empty()) job_name_ = theirs.job_name;
    world_.job_ranks.push_back(static_cast<int>(world_.job_ranks.size()));
  }
  world_.rank = job_->rank();
}

RankContext::~RankContext() {
  remove_from_flights_on_signal(*this);
  if (std::uncaught_exceptions() > exceptions_at_start_) job_->abort("an exception ended it.");
  leaves_ = true;
  job_->leave(leave_timeout_);
  // The thread that was told of a failure may not have written the flight file yet.
  try {
    job_->check();
  } catch (const std::exception& error) {
    job_->report(error.what());
  }
  job_->observe(nullptr);
}

std::string RankContext::write_flight(const std::string& directory, const std::string& reason) {
  return stretto::write_flight(ledger_, {job_name_, job_->rank(), job_->size(), reason}, directory);
}

RankAccount RankContext::account(int rank, const OperationId& wanted) {
  if (leaves_) return {"has ended its part of the job and waits for the others to leave, too", {}, wanted};
  LedgerAccount its = account_of(ledger_);
  RankAccount account{std::move(its.text), its.waits ? network_->awaited_ranks().all() : std::vector<int>(), wanted};
  if (wanted.number == 0) return account;
  if (const std::optional<OpenCall> call = open_calls_.in_the_way_of(wanted, rank)) {
    account.held_up_in = call->id;
    account.held_up_text = call->text;
    account.held_up_by = network_->awaited_ranks().all();
    std::erase_if(account.held_up_by, [&](int each) { return std::ranges::count(call->ranks, each) == 0; });
  }
  return account;
}

void RankContext::trouble(const std::string& sentence) {
  const std::string directory = setting("STRETTO_FLIGHT_DIR");
  if (directory.empty() || wrote_flight_.exchange(true)) return;
  try {
    write_flight(directory, sentence);
  } catch (const std::exception& error) {
    log().error("{}", error.what());
  }
}

}  // namespace stretto
