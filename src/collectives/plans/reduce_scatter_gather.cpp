// Reduce as reduce-scatter and gather (Rabenseifner 2004): recursive halving leaves every rank with the sum of one share,
// and a binomial tree brings the shares to the root. Every rank sends at most 2 (p-1)/p n.
#include "collectives/plans/generators.hpp"
#include "collectives/plans/knomial_tree.hpp"

namespace stretto::plans {

// (sum(qi - 1) + ceil(log2 p)) alpha + 2 (p-1)/p n beta + (p-1)/p n gamma, where qi are the prime factors of p
Cost reduce_scatter_gather_reduce_cost(const PlanRequest& request) {
  const double share = longest_share(request);
  const Cost gather{static_cast<double>(KnomialTree::depth(request.size, 2)),
                    static_cast<double>(KnomialTree::children_of_root(request.size, 2)), (request.size - 1) * share,
                    request.size == 1 ? share : 0};
  return halving_reduce_scatter_cost(request) + gather;
}
Plan reduce_scatter_gather_reduce(const PlanRequest& request) {
  PlanBuilder plan(request);
  const KnomialTree tree(request.rank, request.root, request.size, 2);
  // By place, so that the root's share is first and no subtree's shares wrap around.
  const Shares shares = Shares::of(request);
  PlanRequest part{Collective::reduce_scatter, Algorithm::recursive_halving_doubling, tree.place(), request.size};
  for (int place = 0; place < request.size; ++place) part.counts.push_back(shares.length(place));
  const auto rank_at = [&](int place) { return tree.rank_at(place); };

  // The sum lies where the gather expects its own share: at the front of the output, or of scratch.
  const std::int64_t n = shares.length(tree.place());
  const Slice own = tree.is_root() ? output(0, n) : scratch(0, n);
  plan.append(halving_reduce_scatter(part), rank_at, {input(0, 0), own, tree.is_root() ? 0 : n});
  part.collective = Collective::gather;
  part.method = Algorithm::binomial;
  plan.append(tree_gather(part), rank_at, {own, output(0, 0), 0});
  return plan.finish();
}

}  // namespace stretto::plans
