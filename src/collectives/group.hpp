#pragma once
#include <condition_variable>
#include <map>
#include <mutex>

#include "stretto/communicator.hpp"
#include "transport/network.hpp"

namespace stretto {

// What all communicators of one rank share. It goes with the last of them, and then waits for the other ranks (Job::leave),
// unless an exception is what ends it.
class RankContext {
 public:
  explicit RankContext(std::unique_ptr<Job> job);
  ~RankContext();
  RankContext(const RankContext&) = delete;
  RankContext& operator=(const RankContext&) = delete;

  Job& job() { return *job_; }
  Network& network() { return *network_; }
  Ledger& ledger() { return ledger_; }
  std::uint32_t next_group_id = 1;  // used under split(), one at a time

 private:
  std::unique_ptr<Job> job_;
  std::unique_ptr<Network> network_;
  Ledger ledger_;
  int exceptions_at_start_;
};

// Collective: the communicator of all ranks of the job.
Communicator world_of(std::unique_ptr<Job> job);

}  // namespace stretto
