// Chains: the vector goes from rank to rank in pieces that follow each other, so that all links are busy at once. In each
// round a rank passes one piece on while the next one arrives. Every rank sends n bytes whatever p is, but the vector needs
// p - 1 hops. For large vectors; the best number of pieces grows with the size.
#include "collectives/plans/generators.hpp"

namespace stretto::plans {
namespace {

// The root has place 0.
struct Chain {
  explicit Chain(const PlanRequest& request)
      : root(request.root),
        size(request.size),
        place((request.rank - request.root + size) % size),
        pieces(Shares::balanced(request.count, request.method.pieces)) {}

  bool is_root() const { return place == 0; }
  bool is_last() const { return place == size - 1; }
  int rank_at(int at) const { return (at + root) % size; }
  Slice in(int piece) const { return input(pieces.begin(piece), pieces.length(piece)); }
  Slice out(int piece) const { return output(pieces.begin(piece), pieces.length(piece)); }

  int root;
  int size;
  int place;
  Shares pieces;
};

// The cost until the last piece has made its last hop.
Cost hops(const PlanRequest& request, double work_a_message) {
  if (request.size == 1) return {};
  const int pieces = request.method.pieces;
  const double messages = request.size - 2 + pieces;
  const double sent = messages * static_cast<double>(request.count) / pieces;
  return {messages, messages, sent, work_a_message * sent};
}

}  // namespace

// (p-2 + s) (alpha + n/s beta) + max(0, 1 - (p-2)/s) n gamma, where s is the number of pieces. The last term is the rest of
// the root's copy when the last piece arrives, if copying is as fast as sending: approximate except for p <= 2 and s <= p-2.
Cost chain_broadcast_cost(const PlanRequest& request) {
  const double hidden = std::max(0, request.size - 2) / static_cast<double>(request.method.pieces);
  return hops(request, 0) + Cost{0, 0, 0, std::max(0.0, 1 - hidden) * static_cast<double>(request.count)};
}
Plan chain_broadcast(const PlanRequest& request) {
  PlanBuilder plan(request);
  const Chain chain(request);
  const int pieces = request.method.pieces;
  for (int i = 0; i <= pieces; ++i) {
    if (!chain.is_root() && i < pieces) plan.recv(chain.rank_at(chain.place - 1), chain.out(i));
    if (!chain.is_last() && i > 0) {
      plan.send(chain.rank_at(chain.place + 1), chain.is_root() ? chain.in(i - 1) : chain.out(i - 1));
    }
    plan.next_round();
  }
  if (chain.is_root()) plan.copy(input(0, request.count), output(0, request.count));
  return plan.finish();
}

// (p-2 + s) (alpha + n/s (beta + gamma)), where s is the number of pieces
Cost chain_reduce_cost(const PlanRequest& request) {
  return hops(request, 1) + Cost{0, 0, 0, request.size == 1 ? static_cast<double>(request.count) : 0};
}
Plan chain_reduce(const PlanRequest& request) {
  PlanBuilder plan(request);
  const Chain chain(request);
  const int pieces = request.method.pieces;
  if (chain.size == 1) {
    plan.copy(input(0, request.count), output(0, request.count));
    return plan.finish();
  }
  // Between the ends, one half of scratch is sent while the other is filled.
  const std::int64_t half = chain.pieces.longest();
  const auto sum = [&](int piece) {
    if (chain.is_last()) return chain.in(piece);
    return chain.is_root() ? chain.out(piece) : scratch(piece % 2 * half, chain.pieces.length(piece));
  };
  for (int i = 0; i <= pieces; ++i) {
    if (!chain.is_last() && i < pieces) {
      plan.recv_reduce(chain.rank_at(chain.place + 1), chain.in(i), sum(i), chain.is_root());
    }
    if (!chain.is_root() && i > 0) plan.send(chain.rank_at(chain.place - 1), sum(i - 1));
    plan.next_round();
  }
  if (!chain.is_root() && !chain.is_last()) plan.use_scratch(std::min(2, pieces) * half);
  return plan.finish();
}

}  // namespace stretto::plans
