// Broadcast as scatter and all-gather (Barnett, Shuler, van de Geijn et al. 1994; Thakur et al. 2005): the vector goes down
// a binomial tree in shares, which then go round in a ring. Every rank sends at most 2 (p-1)/p n. Shares are received at
// their places in the output. So a rank of the tree keeps its whole subtree's shares, and the ring does not send these
// again.
#include "collectives/plans/generators.hpp"
#include "collectives/plans/knomial_tree.hpp"

namespace stretto::plans {

// (ceil(log2 p) + p-1) alpha + 2 (p-1)/p n beta + n gamma
Cost scatter_all_gather_broadcast_cost(const PlanRequest& request) {
  const double around = request.size - 1;
  const double depth = KnomialTree::depth(request.size, 2);
  return {depth + around, depth + around, 2 * around * longest_share(request), static_cast<double>(request.count)};
}
Plan scatter_all_gather_broadcast(const PlanRequest& request) {
  PlanBuilder plan(request, 2 * static_cast<std::size_t>(request.size));
  const int size = request.size;
  const KnomialTree tree(request.rank, request.root, size, 2);
  const Shares shares = Shares::of(request);  // by place
  const auto block = [&](int first, int places) {
    const Slice slice = output(shares.begin(first), shares.length(first, places));
    return tree.is_root() ? input(slice.offset, slice.count) : slice;
  };

  if (!tree.is_root()) plan.recv(tree.parent(), block(tree.place(), tree.places()));
  plan.next_round();
  for (const auto& children : tree.levels()) {
    for (const auto& child : children) plan.send(child.rank, block(child.first, child.places));
    plan.next_round();
  }

  // In round k the share that started k places before this rank leaves, unless the next rank has it from the tree.
  const int next = (tree.place() + 1) % size;
  const int before = (tree.place() - 1 + size) % size;
  for (int k = 0; k < size - 1; ++k) {
    if (k < size - tree.places(next)) plan.send(tree.rank_at(next), block((tree.place() - k + size) % size, 1));
    if (k < size - tree.places()) plan.recv(tree.rank_at(before), block((before - k + size) % size, 1));
    plan.next_round();
  }
  if (tree.is_root()) plan.copy(input(0, request.count), output(0, request.count));
  return plan.finish();
}

}  // namespace stretto::plans
