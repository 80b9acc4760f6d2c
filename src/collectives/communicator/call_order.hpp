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
  // Called repeatedly while the calls wait. ranks() returns the awaited ranks, numbered in the job. Once a second, check()
  // asks these for whom they wait, and so on. It throws Error(invalid_argument), and tells all ranks, if the ranks wait in a
  // circle: each is in an operation that the next rank cannot begin before its own has ended.
  void check(const std::function<std::vector<int>()>& ranks);

 private:
  struct Waiting;
  void check(const OpenCall& mine, std::vector<int> ranks);
  void report(const std::vector<Waiting>& waiting);

  RankContext& context_;
  std::vector<std::unique_ptr<OpenCalls::Place>> places_;
  double asked_at_ = now_seconds();
};

}  // namespace stretto
