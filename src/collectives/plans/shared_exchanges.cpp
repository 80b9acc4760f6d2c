// Collectives over shared memory that do not reduce: each rank reads the elements that it needs, from one rank after the
// other.
#include "collectives/plans/shared_memory.hpp"

namespace stretto::plans {
// n is the whole output. packet, staged: alpha + (p+1)/p n gamma; pull: 2 alpha + (p-1)/p n beta + n/p gamma
Cost shared_all_gather_cost(const PlanRequest& request) {
  const double share = longest_share(request);
  return of_offer(request, share) + one_phase + of_reads(request, (request.size - 1) * share) + of_copies(share) +
         of_closing(request);
}
Plan shared_all_gather(const PlanRequest& request) {
  SharedPlan plan(request);
  const Shares shares = Shares::of(request);
  const Slice own = input(0, shares.length(request.rank));
  plan.offer(own);
  plan.signal_all();
  plan.for_each_peer(
      [&](int peer) { plan.read_when_told(peer, plan.offered(0, shares.length(peer)), share_out(shares, peer)); });
  plan.copy(own, share_out(shares, request.rank));
  plan.close();
  return plan.finish();
}

// n is the whole input. packet, staged: alpha + (2p-1)/p n gamma; pull: 2 alpha + (p-1)/p n beta + n/p gamma
Cost shared_all_to_all_cost(const PlanRequest& request) {
  const double share = longest_share(request);
  const double others = request.size - 1;
  return of_offer(request, others * share) + one_phase + of_reads(request, others * share) + of_copies(share) +
         of_closing(request);
}
Plan shared_all_to_all(const PlanRequest& request) {
  SharedPlan plan(request);
  const Shares shares = Shares::of(request);
  const Slice own = share_in(shares, request.rank);
  plan.offer_all_but(own);
  plan.signal_all();
  plan.for_each_peer(
      [&](int peer) { plan.read_when_told(peer, plan.offered(own.offset, own.count), share_out(shares, peer)); });
  plan.copy(own, share_out(shares, request.rank));
  plan.close();
  return plan.finish();
}

// packet, staged: alpha + 2 n gamma; pull: 2 alpha + n beta. The root's own copy hides behind the others'.
Cost shared_broadcast_cost(const PlanRequest& request) {
  const auto n = static_cast<double>(request.count);
  return of_offer(request, n) + one_phase + of_reads(request, n) + of_closing(request);
}
Plan shared_broadcast(const PlanRequest& request) {
  SharedPlan plan(request);
  const std::int64_t n = request.count;
  const bool is_root = request.rank == request.root;
  if (is_root) plan.offer(input(0, n));
  plan.signal_all();
  if (is_root) {
    plan.copy(input(0, n), output(0, n));
  } else {
    plan.read_when_told(request.root, plan.offered(0, n), output(0, n));
  }
  plan.close_before_root();
  return plan.finish();
}

// 2 alpha + n gamma, less n/p gamma in place: all ranks copy, and so does the root.
Cost push_broadcast_cost(const PlanRequest& request) {
  const double share = longest_share(request);
  return one_phase + of_copies(request.size * share) + of_closing(request);
}
Plan push_broadcast(const PlanRequest& request) {
  SharedPlan plan(request);
  const Shares shares = Shares::of(request);
  plan.signal_all();
  plan.wait_for_all();
  plan.copy_to_all(request.root, share_in(shares, request.rank), share_out(shares, request.rank));
  plan.close();
  return plan.finish();
}

// That of an all-gather: the root, which reads all others' shares as every rank does there, ends last.
Cost shared_gather_cost(const PlanRequest& request) { return shared_all_gather_cost(request); }
Plan shared_gather(const PlanRequest& request) {
  SharedPlan plan(request);
  const Shares shares = Shares::of(request);
  const Slice own = input(0, shares.length(request.rank));
  const bool is_root = request.rank == request.root;
  if (!is_root) plan.offer(own);
  plan.signal_all();
  if (is_root) {
    plan.for_each_peer(
        [&](int peer) { plan.read_when_told(peer, plan.offered(0, shares.length(peer)), share_out(shares, peer)); });
    plan.copy(own, share_out(shares, request.rank));
  }
  plan.close_behind_root();
  return plan.finish();
}

// n is the whole input. packet, staged: alpha + n gamma; pull: 2 alpha + n/p beta. Others hide the root's own
// copy.
Cost shared_scatter_cost(const PlanRequest& request) {
  const double share = longest_share(request);
  return of_offer(request, (request.size - 1) * share) + one_phase + of_reads(request, share) + of_closing(request);
}
Plan shared_scatter(const PlanRequest& request) {
  SharedPlan plan(request);
  const Shares shares = Shares::of(request);
  const Slice own = share_in(shares, request.rank);
  const bool is_root = request.rank == request.root;
  if (is_root) plan.offer_all_but(own);
  plan.signal_all();
  if (is_root) {
    plan.copy(own, output(0, own.count));
  } else {
    plan.read_when_told(request.root, plan.offered(own.offset, own.count), output(0, own.count));
  }
  plan.close_before_root();
  return plan.finish();
}

}  // namespace stretto::plans
