#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "collectives/job/open_calls.hpp"
#include "collectives/selection/select.hpp"
#include "device/stream/unwinding.hpp"
#include "stretto/ledger.hpp"
#include "transport/bootstrap/job.hpp"
#include "transport/links.hpp"
#include "transport/network.hpp"

namespace stretto {

// The state that all communicators of one rank share. It is destroyed with the last of them; the destructor then waits for
// the other ranks (JobControl::leave) for at most the leave timeout. If an exception is in flight, it tells the other ranks.
class RankContext final : private JobObserver {
 public:
  // Collective. A job in which it fails can still shrink.
  // name: of the job's first communicator.
  RankContext(std::shared_ptr<JobControl> job, bool may_pin, std::string name);
  ~RankContext() override;
  RankContext(const RankContext&) = delete;
  RankContext& operator=(const RankContext&) = delete;

  JobControl& job() { return *job_; }
  const std::string& name() const { return name_; }
  const Membership& world() const { return world_; }  // the members of the first communicator, of all ranks
  Network& network() { return *network_; }
  Ledger& ledger() { return ledger_; }
  Selector& selector() { return *selector_; }
  bool checks_calls() const { return checks_calls_; }  // STRETTO_CHECK
  OpenCalls& open_calls() { return open_calls_; }      // with STRETTO_CHECK
  void set_leave_timeout(double seconds) { leave_timeout_ = seconds; }
  // Writes this rank's last operations (collectives/ledger/flight.hpp), and returns the path.
  std::string write_flight(const std::string& directory, const std::string& reason);
  std::mutex issue_mutex;  // held while a call gets its turns in its communicators and its places in streams
  // The number of the next communicator whose first member is this rank. Several threads may make communicators.
  std::atomic<std::uint64_t> next_group = 1;

 private:
  void meet();
  RankAccount account(int rank, const OperationId& wanted) override;
  void trouble(const std::string& sentence) override;

  std::shared_ptr<JobControl> job_;
  std::string name_;
  std::unique_ptr<Network> network_;
  std::unique_ptr<Selector> selector_;
  Membership world_;
  Ledger ledger_;
  bool checks_calls_;
  OpenCalls open_calls_;
  std::atomic<double> leave_timeout_ = JobControl::no_limit;
  int exceptions_at_start_;
  std::uint64_t job_name_ = 0;  // in flight files
  std::atomic<bool> leaves_ = false;
  std::atomic<bool> wrote_flight_ = false;  // after the first failure; later ones are its consequences
  UnwindingNotice notice_;
};

}  // namespace stretto
