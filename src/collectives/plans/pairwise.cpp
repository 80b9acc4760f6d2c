// Pairwise exchange: one peer after the other. Every rank sends one message and receives one at a time, so that no two
// messages use one port at once. For large vectors, and for networks that slow down when all ranks send to all at once.
#include <bit>

#include "collectives/plans/generators.hpp"
#include "core/fail.hpp"

namespace stretto::plans {

Shares incoming_shares(const PlanRequest& request) {
  if (request.counts.empty()) return Shares::of(request);
  require(request.counts[request.rank] == request.receive_counts[request.rank],
          "Rank {} sends {} elements to itself and expects {}; give the same count.", request.rank,
          request.counts[request.rank], request.receive_counts[request.rank]);
  return Shares::listed(request.receive_counts);
}

// (p-1) alpha + (p-1)/p n beta + n/p gamma, where n is the whole input
Cost pairwise_all_to_all_cost(const PlanRequest& request) {
  const double steps = request.size - 1;
  const double share = longest_share(request);
  return {steps, steps, steps * share, share};
}
Plan pairwise_all_to_all(const PlanRequest& request) {
  PlanBuilder plan(request);
  const int rank = request.rank;
  const int size = request.size;
  const Shares leaving = Shares::of(request);
  const Shares coming = incoming_shares(request);
  plan.copy(input(leaving.begin(rank), leaving.length(rank)), output(coming.begin(rank), coming.length(rank)));
  // If the number of ranks is a power of two, ranks form pairs, and each pair exchanges in both directions.
  const bool in_pairs = std::has_single_bit(static_cast<unsigned>(size));
  for (int i = 1; i < size; ++i) {
    const int to = in_pairs ? rank ^ i : (rank + i) % size;
    const int from = in_pairs ? rank ^ i : (rank - i + size) % size;
    plan.send(to, input(leaving.begin(to), leaving.length(to)));
    plan.recv(from, output(coming.begin(from), coming.length(from)));
    plan.next_round();
  }
  return plan.finish();
}

// (p-1) alpha + (p-1)/p n beta + (p-1)/p n gamma, where n is the whole input; alone, a copy's n gamma
Cost pairwise_reduce_scatter_cost(const PlanRequest& request) {
  const double steps = request.size - 1;
  const double share = longest_share(request);
  return {steps, steps, steps * share, std::max(1.0, steps) * share};
}
Plan pairwise_reduce_scatter(const PlanRequest& request) {
  PlanBuilder plan(request, 2 * static_cast<std::size_t>(request.size));
  const int rank = request.rank;
  const int size = request.size;
  const Shares shares = Shares::of(request);
  const Slice own = input(shares.begin(rank), shares.length(rank));
  const Slice sum = output(0, shares.length(rank));
  if (size == 1) plan.copy(own, sum);
  for (int i = 1; i < size; ++i) {
    const int to = (rank + i) % size;
    plan.send(to, input(shares.begin(to), shares.length(to)));
    plan.recv_reduce((rank - i + size) % size, i == 1 ? own : sum, sum, i == size - 1);
    plan.next_round();
  }
  return plan.finish();
}

}  // namespace stretto::plans
