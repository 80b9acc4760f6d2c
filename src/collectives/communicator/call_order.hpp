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
  // Called again and again while the calls wait. Once a second it asks the ranks for which they wait, ranks() of the job,
  // and those for which these wait. Throws Error(invalid_argument), and tells all ranks, if they wait in a circle: each in
  // an operation that the next one cannot begin before its own has ended.
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
