// K-nomial trees, for any root. Radix 2 is the binomial tree; radix 4 has half as many rounds, of up to three messages each.
// In the formulas, d = ceil(log_k p) rounds and m <= d (k-1) messages are those of the root, which has the longest path.
#include "collectives/plans/generators.hpp"
#include "collectives/plans/knomial_tree.hpp"

namespace stretto::plans {
namespace {

int radix_of(const PlanRequest& request) { return request.method.algorithm == Algorithm::knomial ? 4 : 2; }
KnomialTree tree_of(const PlanRequest& request) { return {request.rank, request.root, request.size, radix_of(request)}; }

// The places of the shares of a run of tree places. A subtree keeps its shares in the order of tree places. The root's
// vector has them in rank order, in which one child's shares may begin at the end and continue at the front. That child's
// shares go in two messages, the second in a round of its own.
struct Blocks {
  explicit Blocks(const PlanRequest& request) : tree(tree_of(request)), size(request.size), shares(Shares::of(request)) {}

  struct Halves {
    Slice before, after;  // before and after the wrap; after is mostly empty
  };
  Halves of_root(Buffer buffer, int first, int places) const {
    const int rank = tree.rank_at(first);
    const int before = before_wrap(first, places);
    return {{buffer, shares.begin(rank), shares.length(rank, before)}, {buffer, 0, shares.length(0, places - before)}};
  }
  // The whole subtree's shares in this rank's memory, as they are exchanged with the parent.
  Halves of_subtree(Slice own) const {
    if (tree.parent_place() != 0) return {own, {own.buffer, own.offset, 0}};
    const std::int64_t before = shares.length(tree.rank_at(tree.place()), before_wrap(tree.place(), tree.places()));
    return {{own.buffer, own.offset, before}, {own.buffer, own.offset + before, own.count - before}};
  }
  Halves of_child(Buffer roots, const KnomialTree::Child& child) const {
    if (tree.is_root()) return of_root(roots, child.first, child.places);
    return {scratch(length(tree.place(), child.first - tree.place()), length(child.first, child.places)), scratch(0, 0)};
  }
  std::int64_t length(int first, int places) const {
    const int before = before_wrap(first, places);
    return shares.length(tree.rank_at(first), before) + shares.length(0, places - before);
  }
  int before_wrap(int first, int places) const { return std::min(places, size - tree.rank_at(first)); }

  KnomialTree tree;
  int size;
  Shares shares;
};

// Whether rank 0 is inside the subtree of one of the root's children, but not the subtree's first rank.
bool wraps(const PlanRequest& request) {
  const int place = (request.size - request.root) % request.size;
  int unit = 1;
  while (unit * radix_of(request) <= place) unit *= radix_of(request);
  return place % unit != 0;
}

Cost whole_vectors(const PlanRequest& request, double work_a_message) {
  const double messages = KnomialTree::children_of_root(request.size, radix_of(request));
  const auto n = static_cast<double>(request.count);
  return {static_cast<double>(KnomialTree::depth(request.size, radix_of(request))), messages, messages * n,
          messages * work_a_message * n};
}
Cost blocks(const PlanRequest& request) {
  const double extra = wraps(request) ? 1 : 0;
  return {KnomialTree::depth(request.size, radix_of(request)) + extra,
          KnomialTree::children_of_root(request.size, radix_of(request)) + extra,
          (request.size - 1) * longest_share(request), longest_share(request)};
}

}  // namespace

// d alpha + m n beta + n gamma
Cost tree_broadcast_cost(const PlanRequest& request) {
  return whole_vectors(request, 0) + Cost{0, 0, 0, static_cast<double>(request.count)};
}
Plan tree_broadcast(const PlanRequest& request) {
  PlanBuilder plan(request);
  const KnomialTree tree = tree_of(request);
  const std::int64_t n = request.count;
  if (!tree.is_root()) plan.recv(tree.parent(), output(0, n));
  plan.next_round();
  // The children with the largest subtrees come first, because they have the longest way to go.
  for (const auto& children : tree.levels()) {
    for (const auto& child : children) plan.send(child.rank, tree.is_root() ? input(0, n) : output(0, n));
    plan.next_round();
  }
  if (tree.is_root()) plan.copy(input(0, n), output(0, n));
  return plan.finish();
}

// d alpha + m n (beta + gamma); with radix 4 less, if the first vector of a level is added while the others arrive
Cost tree_reduce_cost(const PlanRequest& request) {
  return whole_vectors(request, 1) + Cost{0, 0, 0, request.size == 1 ? static_cast<double>(request.count) : 0};
}
Plan tree_reduce(const PlanRequest& request) {
  PlanBuilder plan(request);
  const KnomialTree tree = tree_of(request);
  const std::int64_t n = request.count;
  const auto levels = tree.levels();
  // All children of a level send at once. The first child's vector is added to this rank's as it arrives. That sum and the
  // other vectors, which lie one after the other in scratch, are then reduced to one.
  std::int64_t vectors = 0;
  for (const auto& children : levels) {
    if (children.size() > 1) vectors = std::max<std::int64_t>(vectors, static_cast<std::int64_t>(children.size()));
  }
  const Slice sum = tree.is_root() ? output(0, n) : scratch(vectors * n, n);
  Slice so_far = input(0, n);
  for (auto level = levels.rbegin(); level != levels.rend(); ++level) {
    const bool finishes = tree.is_root() && level + 1 == levels.rend();
    const auto arriving = static_cast<std::int64_t>(level->size());
    if (arriving == 1) {
      plan.recv_reduce(level->front().rank, so_far, sum, finishes);
    } else {
      plan.recv_reduce(level->front().rank, so_far, scratch(0, n), false);
      for (std::int64_t i = 1; i < arriving; ++i) plan.recv((*level)[static_cast<std::size_t>(i)].rank, scratch(i * n, n));
      plan.next_round();
      plan.reduce(scratch(0, arriving * n), sum, finishes);
    }
    plan.next_round();
    so_far = sum;
  }
  if (!tree.is_root()) {
    plan.send(tree.parent(), so_far);
  } else if (tree.is_leaf()) {
    plan.copy(so_far, sum);
  }
  plan.use_scratch((vectors + (tree.is_root() || tree.is_leaf() ? 0 : 1)) * n);
  return plan.finish();
}

// d alpha + (p-1)/p n beta + n/p gamma, where n is the whole output; one alpha more if a subtree's shares wrap around its
// end
Cost tree_gather_cost(const PlanRequest& request) { return blocks(request); }
Plan tree_gather(const PlanRequest& request) {
  PlanBuilder plan(request);
  const Blocks blocks(request);
  const KnomialTree& tree = blocks.tree;
  const std::int64_t n = blocks.shares.length(request.rank);
  const std::int64_t subtree = blocks.length(tree.place(), tree.places());
  if (tree.is_root()) {
    plan.copy(input(0, n), output(blocks.shares.begin(request.rank), n));
  } else if (!tree.is_leaf()) {
    plan.copy(input(0, n), scratch(0, n));
    plan.use_scratch(subtree);
  }
  plan.next_round();
  const auto levels = tree.levels();
  for (auto level = levels.rbegin(); level != levels.rend(); ++level) {
    for (const auto& child : *level) plan.recv(child.rank, blocks.of_child(Buffer::output, child).before);
    plan.next_round();
    for (const auto& child : *level) plan.recv(child.rank, blocks.of_child(Buffer::output, child).after);
    plan.next_round();
  }
  if (!tree.is_root()) {
    const Blocks::Halves all = blocks.of_subtree(tree.is_leaf() ? input(0, n) : scratch(0, subtree));
    plan.send(tree.parent(), all.before);
    plan.next_round();
    plan.send(tree.parent(), all.after);
  }
  return plan.finish();
}

// d alpha + (p-1)/p n beta + n/p gamma, where n is the whole input; one alpha more if a subtree's shares wrap around its end
Cost tree_scatter_cost(const PlanRequest& request) { return blocks(request); }
Plan tree_scatter(const PlanRequest& request) {
  PlanBuilder plan(request);
  const Blocks blocks(request);
  const KnomialTree& tree = blocks.tree;
  const std::int64_t n = blocks.shares.length(request.rank);
  const std::int64_t subtree = blocks.length(tree.place(), tree.places());
  if (!tree.is_root()) {
    const Blocks::Halves all = blocks.of_subtree(tree.is_leaf() ? output(0, n) : scratch(0, subtree));
    plan.recv(tree.parent(), all.before);
    plan.next_round();
    plan.recv(tree.parent(), all.after);
    plan.next_round();
  }
  for (const auto& children : tree.levels()) {
    for (const auto& child : children) plan.send(child.rank, blocks.of_child(Buffer::input, child).before);
    plan.next_round();
    for (const auto& child : children) plan.send(child.rank, blocks.of_child(Buffer::input, child).after);
    plan.next_round();
  }
  if (tree.is_root()) {
    plan.copy(input(blocks.shares.begin(request.rank), n), output(0, n));
  } else if (!tree.is_leaf()) {
    plan.copy(scratch(0, n), output(0, n));
    plan.use_scratch(subtree);
  }
  return plan.finish();
}

}  // namespace stretto::plans
