#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "collectives/communicator/operation.hpp"
#include "collectives/job/rank_context.hpp"

namespace stretto {

// STRETTO_CHECK=1: the places of calls that are launched together among the open calls of their rank, and the comparison of
// these places with those on other ranks.
class CallOrder {
 public:
  // The calls begin together, behind what is in any of their communicators and streams. first_record: the first one's number
  // in the ledger, which the others' numbers follow.
  CallOrder(const std::vector<PendingCall>& calls, std::uint64_t first_record, const Work& work);

  void begin();
  // Called again and again while the calls wait. Once a second it asks the ranks for which they wait, ranks() of the job.
  // Throws Error(invalid_argument), and tells all ranks, if one of these waits for this rank in an operation that comes here
  // after one of these calls, and there before it.
  void check(const std::function<std::vector<int>()>& ranks);

 private:
  void check(const OpenCall& mine, std::vector<int> ranks);

  RankContext& context_;
  std::vector<std::unique_ptr<OpenCalls::Place>> places_;
  double asked_at_ = now_seconds();
};

}  // namespace stretto
