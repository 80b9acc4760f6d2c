// Reductions over shared memory: one rank forms each sum, in rank order, from all vectors in their owners' memory. So the
// bits are the same on every rank, whatever the size. A rank does not offer the data that only itself reads.
#include "collectives/plans/shared_memory.hpp"

namespace stretto::plans {

// packet: alpha + p n gamma
Cost packet_all_reduce_cost(const PlanRequest& request) {
  const auto n = static_cast<double>(request.count);
  return of_offer(request, n) + one_phase + of_reduction(request, n);
}
Plan packet_all_reduce(const PlanRequest& request) {
  SharedPlan plan(request);
  plan.offer(input(0, request.count));
  plan.signal_all();
  plan.wait_for_all();
  plan.read_reduce(plan.offered(0, request.count), request.rank, output(0, request.count));
  return plan.finish();
}

// staged: 2 alpha + (3p-2)/p n gamma; pull: 3 alpha + 2 (p-1)/p n beta + (p-1)/p n gamma
Cost shared_all_reduce_cost(const PlanRequest& request) {
  const auto n = static_cast<double>(request.count);
  const double share = longest_share(request);
  return of_offer(request, n - share) + one_phase + of_reduction(request, share) + one_phase +
         of_reads(request, (request.size - 1) * share) + of_offer(request, share) + of_closing(request);
}
Plan shared_all_reduce(const PlanRequest& request) {
  SharedPlan plan(request);
  const Shares shares = Shares::of(request);
  // A rank's sum is where its own contribution would be.
  const auto sum = [&](int rank) {
    return copies(request) ? scratch(shares.begin(rank), shares.length(rank)) : share_out(shares, rank);
  };
  plan.offer_all_but(share_in(shares, request.rank));
  plan.signal_all();
  plan.wait_for_all();
  plan.read_reduce(plan.offered(shares.begin(request.rank), shares.length(request.rank)), request.rank, sum(request.rank));
  plan.signal_all();
  plan.for_each_peer([&](int peer) { plan.read_when_told(peer, sum(peer), share_out(shares, peer)); });
  plan.copy(sum(request.rank), share_out(shares, request.rank));
  plan.close();
  return plan.finish();
}

// 2 alpha + 2 (p-1)/p n gamma
Cost push_all_reduce_cost(const PlanRequest& request) {
  const double share = longest_share(request);
  return one_phase + of_copies(2 * (request.size - 1) * share) + of_closing(request);
}
Plan push_all_reduce(const PlanRequest& request) {
  SharedPlan plan(request);
  const Shares shares = Shares::of(request);
  plan.signal_all();
  plan.wait_for_all();
  plan.read_reduce(share_in(shares, request.rank), everybody, share_out(shares, request.rank));
  plan.close();
  return plan.finish();
}

// packet: alpha + p n gamma
Cost packet_reduce_cost(const PlanRequest& request) { return packet_all_reduce_cost(request); }
Plan packet_reduce(const PlanRequest& request) {
  SharedPlan plan(request);
  if (request.rank != request.root) plan.offer(input(0, request.count));
  plan.signal_all();
  if (request.rank != request.root) return plan.finish();
  plan.wait_for_all();
  plan.read_reduce(plan.offered(0, request.count), request.rank, output(0, request.count));
  return plan.finish();
}

// staged: 2 alpha + 3 (p-1)/p n gamma; pull: 3 alpha + 2 (p-1)/p n beta + (p-1)/p n gamma
Cost shared_reduce_cost(const PlanRequest& request) {
  const auto n = static_cast<double>(request.count);
  const double share = longest_share(request);
  return of_offer(request, n - share) + one_phase + of_reduction(request, share) + one_phase +
         of_reads(request, (request.size - 1) * share) + of_closing(request);
}
Plan shared_reduce(const PlanRequest& request) {
  SharedPlan plan(request);
  const Shares shares = Shares::of(request);
  const bool is_root = request.rank == request.root;
  // A sum lies in its rank's scratch, except the root's; by staged it takes the place of the rank's own contribution.
  const auto sum = [&](int rank) { return scratch(copies(request) ? shares.begin(rank) : 0, shares.length(rank)); };
  if (!copies(request) && !is_root) plan.use_scratch(shares.length(request.rank));
  plan.offer_all_but(share_in(shares, request.rank));
  plan.signal_all();
  plan.wait_for_all();
  plan.read_reduce(plan.offered(shares.begin(request.rank), shares.length(request.rank)), request.rank,
                   is_root ? share_out(shares, request.rank) : sum(request.rank));
  plan.signal_all();
  if (is_root) {
    plan.for_each_peer([&](int peer) { plan.read_when_told(peer, sum(peer), share_out(shares, peer)); });
  }
  plan.close_behind_root();  // the root has waited for all ranks' sums, so all inputs have been read
  return plan.finish();
}

// 2 alpha + (p-1)/p n gamma
Cost push_reduce_cost(const PlanRequest& request) {
  const double share = longest_share(request);
  return one_phase + of_copies((request.size - 1) * share) + of_closing(request);
}
Plan push_reduce(const PlanRequest& request) {
  SharedPlan plan(request);
  const Shares shares = Shares::of(request);
  plan.signal_all();
  plan.wait_for_all();
  plan.read_reduce(share_in(shares, request.rank), request.root, share_out(shares, request.rank));
  plan.close();
  return plan.finish();
}

// n is the whole input. packet, staged: alpha + 2 (p-1)/p n gamma; pull: 2 alpha + (p-1)/p n (beta + gamma)
Cost shared_reduce_scatter_cost(const PlanRequest& request) {
  const double share = longest_share(request);
  return of_offer(request, (request.size - 1) * share) + one_phase + of_reduction(request, share) + of_closing(request);
}
Plan shared_reduce_scatter(const PlanRequest& request) {
  SharedPlan plan(request);
  const Shares shares = Shares::of(request);
  const Slice own = share_in(shares, request.rank);
  plan.offer_all_but(own);
  plan.signal_all();
  plan.wait_for_all();
  plan.read_reduce(plan.offered(own.offset, own.count), request.rank, output(0, own.count));
  plan.close();
  return plan.finish();
}

}  // namespace stretto::plans
