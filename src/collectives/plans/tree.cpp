// Binomial trees, for any root: ranks are renumbered so that the root is 0; the parent of a rank is itself without its
// lowest set bit. Both: ceil(log2 p) (alpha + n beta), reduce with n gamma each; the root of a broadcast sends ceil(log2 p)
// n.
#include <bit>

#include "collectives/plans/generators.hpp"

namespace stretto::plans {
namespace {

struct Tree {
  explicit Tree(const PlanRequest& request)
      : root(request.root), size(request.size), place((request.rank - request.root + request.size) % request.size) {}

  int rank_at(int at) const { return (at + root) % size; }
  int parent() const { return rank_at(place & (place - 1)); }
  // Children are place + 1, place + 2, place + 4, ... up to, and without, our own lowest set bit.
  int child_limit() const {
    return place == 0 ? static_cast<int>(std::bit_ceil(static_cast<unsigned>(size))) : place & -place;
  }

  int root;
  int size;
  int place;
};

}  // namespace

Cost tree_broadcast_cost(const PlanRequest& request) {
  const double depth = std::bit_width(static_cast<unsigned>(request.size - 1));
  const auto n = static_cast<double>(request.count);
  return {depth, depth, depth * n, n};
}
Plan tree_broadcast(const PlanRequest& request) {
  PlanBuilder plan(request);
  const Tree tree(request);
  const std::int64_t n = request.count;
  if (tree.place == 0) {
    plan.copy(input(0, n), output(0, n));
  } else {
    plan.recv(tree.parent(), output(0, n));
  }
  plan.next_round();
  // The child with the largest subtree first: it has the longest way to go.
  for (int bit = tree.child_limit() / 2; bit > 0; bit /= 2) {
    if (tree.place + bit >= tree.size) continue;
    plan.send(tree.rank_at(tree.place + bit), output(0, n));
    plan.next_round();
  }
  return plan.finish();
}

Cost tree_reduce_cost(const PlanRequest& request) {
  const double depth = std::bit_width(static_cast<unsigned>(request.size - 1));
  const auto n = static_cast<double>(request.count);
  return {depth, depth, depth * n, depth * n};
}
Plan tree_reduce(const PlanRequest& request) {
  PlanBuilder plan(request);
  const Tree tree(request);
  const std::int64_t n = request.count;
  const bool is_root = tree.place == 0;
  const Slice sum = is_root ? output(0, n) : scratch(0, n);
  Slice so_far = input(0, n);
  for (int bit = 1; bit < tree.child_limit() && tree.place + bit < tree.size; bit *= 2) {
    const bool last = 2 * bit >= tree.child_limit() || tree.place + 2 * bit >= tree.size;
    plan.recv_reduce(tree.rank_at(tree.place + bit), so_far, sum, is_root && last);
    plan.next_round();
    so_far = sum;
  }
  if (!is_root) {
    plan.send(tree.parent(), so_far);
  } else if (so_far.buffer == Buffer::input) {
    plan.copy(so_far, sum);
  }
  const bool needs_scratch = !is_root && so_far.buffer == Buffer::scratch;
  plan.use_scratch(needs_scratch ? n : 0);
  return plan.finish();
}

}  // namespace stretto::plans
