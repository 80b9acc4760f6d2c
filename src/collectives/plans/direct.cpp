// Direct exchange: every element goes straight to its destination, all messages at once. Fewest rounds and bytes, but most
// messages at a time: for few ranks, and for fabrics on which every rank reaches every other rank as fast as its neighbour.
// Sums are formed from vectors in scratch, in rank order: the same bits on every rank, whatever the size.
#include "collectives/plan/direct_exchange.hpp"
#include "collectives/plans/generators.hpp"

namespace stretto::plans {
namespace {

// One send and one receive for each peer, and two more steps.
std::size_t steps_with_all(const PlanRequest& request) { return 2 * static_cast<std::size_t>(request.size); }

Slice share_in(const Shares& shares, int rank) { return input(shares.begin(rank), shares.length(rank)); }
Slice share_out(const Shares& shares, int rank) { return output(shares.begin(rank), shares.length(rank)); }

// sum = all ranks' contributions to it. contribution(r) is this rank's contribution to rank r's sum.
template <class Contribution>
void sum_from_all(PlanBuilder& plan, const PlanRequest& request, const Slice& sum, Contribution contribution) {
  const Slice own = contribution(request.rank);
  if (request.size == 1) return plan.copy(own, sum);
  with_all_peers(request, [&](int to, int from) {
    plan.send(to, contribution(to));
    plan.recv(from, slot(from, sum.count));
  });
  plan.copy(own, slot(request.rank, sum.count));
  reduce_slots(plan, request, sum);
}

// All other shares arrive in the output, while `own` is sent to every other rank.
void gather_from_all(PlanBuilder& plan, const PlanRequest& request, const Shares& shares, const Slice& own) {
  with_all_peers(request, [&](int to, int from) {
    plan.send(to, own);
    plan.recv(from, share_out(shares, from));
  });
}

double peers(const PlanRequest& request) { return request.size - 1; }
double rounds(const PlanRequest& request) { return request.size > 1 ? 1 : 0; }
// The port of one rank carries a vector of this length for each peer. This holds for every rank or, with a root, for the
// root, which sends or receives all of them.
Cost to_all(const PlanRequest& request, double elements, double work) {
  return {rounds(request), peers(request), peers(request) * elements, work};
}
}  // namespace

// alpha + (p-1)/p n beta + n/p gamma, where n is the whole input
Cost direct_all_to_all_cost(const PlanRequest& request) {
  return to_all(request, longest_share(request), longest_share(request));
}
Plan direct_all_to_all(const PlanRequest& request) {
  PlanBuilder plan(request, steps_with_all(request));
  const Shares leaving = Shares::of(request);
  const Shares coming = incoming_shares(request);
  with_all_peers(request, [&](int to, int from) {
    plan.send(to, share_in(leaving, to));
    plan.recv(from, share_out(coming, from));
  });
  plan.copy(share_in(leaving, request.rank), share_out(coming, request.rank));
  return plan.finish();
}

// alpha + (p-1)/p n beta + n/p gamma, where n is the whole output
Cost direct_all_gather_cost(const PlanRequest& request) {
  return to_all(request, longest_share(request), longest_share(request));
}
Plan direct_all_gather(const PlanRequest& request) {
  PlanBuilder plan(request, steps_with_all(request));
  const Shares shares = Shares::of(request);
  const Slice own = input(0, shares.length(request.rank));
  gather_from_all(plan, request, shares, own);
  plan.next_round();  // in place, the copy would overwrite elements that are being sent
  plan.copy(own, share_out(shares, request.rank));
  return plan.finish();
}

// alpha + (p-1)/p n beta + n gamma, where n is the whole input
Cost direct_reduce_scatter_cost(const PlanRequest& request) {
  return to_all(request, longest_share(request), request.size * longest_share(request));
}
Plan direct_reduce_scatter(const PlanRequest& request) {
  PlanBuilder plan(request, steps_with_all(request));
  const Shares shares = Shares::of(request);
  sum_from_all(plan, request, output(0, shares.length(request.rank)), [&](int rank) { return share_in(shares, rank); });
  return plan.finish();
}

// alpha + (p-1) n beta + p n gamma
Cost one_shot_all_reduce_cost(const PlanRequest& request) {
  const auto n = static_cast<double>(request.count);
  return to_all(request, n, request.size * n);
}
Plan one_shot_all_reduce(const PlanRequest& request) {
  PlanBuilder plan(request, steps_with_all(request));
  sum_from_all(plan, request, output(0, request.count), [&](int) { return input(0, request.count); });
  return plan.finish();
}

// 2 alpha + 2 (p-1)/p n beta + n gamma
Cost two_shot_all_reduce_cost(const PlanRequest& request) {
  const double share = longest_share(request);
  return to_all(request, share, request.size * share) + to_all(request, share, 0);
}
Plan two_shot_all_reduce(const PlanRequest& request) {
  PlanBuilder plan(request);
  const Shares shares = Shares::of(request);
  const Slice own = share_out(shares, request.rank);
  sum_from_all(plan, request, own, [&](int rank) { return share_in(shares, rank); });
  plan.next_round();
  gather_from_all(plan, request, shares, own);
  return plan.finish();
}

// alpha + (p-1) n beta + n gamma
Cost direct_broadcast_cost(const PlanRequest& request) {
  const auto n = static_cast<double>(request.count);
  return to_all(request, n, n);
}
Plan direct_broadcast(const PlanRequest& request) {
  PlanBuilder plan(request);
  const std::int64_t n = request.count;
  if (request.rank != request.root) {
    plan.recv(request.root, output(0, n));
    return plan.finish();
  }
  with_all_peers(request, [&](int to, int) { plan.send(to, input(0, n)); });
  plan.next_round();  // in place, the copy would overwrite elements that are being sent
  plan.copy(input(0, n), output(0, n));
  return plan.finish();
}

// alpha + (p-1) n beta + p n gamma
Cost direct_reduce_cost(const PlanRequest& request) {
  const auto n = static_cast<double>(request.count);
  return to_all(request, n, request.size * n);
}
Plan direct_reduce(const PlanRequest& request) {
  PlanBuilder plan(request);
  const Slice own = input(0, request.count);
  const Slice sum = output(0, request.count);
  if (request.rank != request.root) {
    plan.send(request.root, own);
  } else if (request.size == 1) {
    plan.copy(own, sum);
  } else {
    with_all_peers(request, [&](int, int from) { plan.recv(from, slot(from, own.count)); });
    plan.copy(own, slot(request.rank, own.count));
    reduce_slots(plan, request, sum);
  }
  return plan.finish();
}

// alpha + (p-1)/p n beta + n/p gamma, where n is the whole output
Cost direct_gather_cost(const PlanRequest& request) {
  return to_all(request, longest_share(request), longest_share(request));
}
Plan direct_gather(const PlanRequest& request) {
  PlanBuilder plan(request);
  const Shares shares = Shares::of(request);
  const Slice own = input(0, shares.length(request.rank));
  if (request.rank != request.root) {
    plan.send(request.root, own);
    return plan.finish();
  }
  with_all_peers(request, [&](int, int from) { plan.recv(from, share_out(shares, from)); });
  plan.copy(own, share_out(shares, request.rank));
  return plan.finish();
}

// alpha + (p-1)/p n beta + n/p gamma, where n is the whole input
Cost direct_scatter_cost(const PlanRequest& request) {
  return to_all(request, longest_share(request), longest_share(request));
}
Plan direct_scatter(const PlanRequest& request) {
  PlanBuilder plan(request);
  const Shares shares = Shares::of(request);
  const Slice own = output(0, shares.length(request.rank));
  if (request.rank != request.root) {
    plan.recv(request.root, own);
    return plan.finish();
  }
  with_all_peers(request, [&](int to, int) { plan.send(to, share_in(shares, to)); });
  plan.copy(share_in(shares, request.rank), own);
  return plan.finish();
}

// alpha + n beta
Cost direct_send_cost(const PlanRequest& request) { return {1, 1, static_cast<double>(request.count), 0}; }
Plan direct_send(const PlanRequest& request) {
  PlanBuilder plan(request);
  plan.send(request.root, input(0, request.count));
  return plan.finish();
}

// alpha + n beta
Cost direct_recv_cost(const PlanRequest& request) { return {1, 1, static_cast<double>(request.count), 0}; }
Plan direct_recv(const PlanRequest& request) {
  PlanBuilder plan(request);
  plan.recv(request.root, output(0, request.count));
  return plan.finish();
}

}  // namespace stretto::plans
