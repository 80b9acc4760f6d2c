// Two binary trees at once (Sanders, Speck & Traeff 2009; NCCL's). Each carries half of the vector, and a rank that has
// children in one tree is a leaf of the other, so that all ranks send and receive equally. The pieces of each half follow
// each other through its tree. All-reduce goes up a tree and down again, and both directions are in progress at the same
// time.
#include <bit>

#include "collectives/plans/generators.hpp"

namespace stretto::plans {
namespace {

// The in-order binary tree of 1..size. A number with b trailing zero bits has height b; odd numbers are leaves.
struct InOrderTree {
  int root() const { return static_cast<int>(std::bit_floor(static_cast<unsigned>(size))); }
  int height() const { return std::bit_width(static_cast<unsigned>(size)) - 1; }
  int parent(int number) const {
    const int bit = number & -number;
    const int full = (number ^ bit) | (bit << 1);
    return full <= size ? full : number ^ bit;  // the numbers in between do not exist
  }
  std::vector<int> children(int number) const {
    std::vector<int> found;
    int below = (number & -number) / 2;
    if (below > 0) found.push_back(number - below);
    while (below > 0 && number + below > size) below /= 2;
    if (below > 0) found.push_back(number + below);
    return found;
  }
  int depth(int number) const {
    int steps = 0;
    for (; number != root(); number = parent(number)) ++steps;
    return steps;
  }
  // The other tree has the same shape, and every member is a leaf of at least one.
  int in_other_tree(int number) const {
    if (size % 2 == 0) return size + 1 - number;
    return number == 1 ? size : number - 1;
  }
  int from_other_tree(int number) const {
    if (size % 2 == 0) return size + 1 - number;
    return number == size ? 1 : number + 1;
  }
  int size;
};

// A rank's place in the tree of one lane. The root of a collective is above both trees; the other ranks form the trees.
struct Node {
  Node(const PlanRequest& request, int lane) {
    const bool rooted = has_root(request.collective);
    const InOrderTree tree{rooted ? request.size - 1 : request.size};
    const int number = rooted ? (request.rank - request.root + request.size) % request.size : request.rank + 1;
    const auto rank_of = [&](int in_tree) {
      const int same = lane == 0 ? in_tree : tree.from_other_tree(in_tree);
      return rooted ? (request.root + same) % request.size : same - 1;
    };
    height = tree.height() + (rooted ? 1 : 0);
    if (number == 0) {
      children = {rank_of(tree.root())};
      return;
    }
    const int in_tree = lane == 0 ? number : tree.in_other_tree(number);
    depth = tree.depth(in_tree) + (rooted ? 1 : 0);
    if (in_tree != tree.root()) {
      parent = rank_of(tree.parent(in_tree));
    } else if (rooted) {
      parent = request.root;
    }
    for (const int child : tree.children(in_tree)) children.push_back(rank_of(child));
  }

  bool is_root() const { return parent < 0; }

  int parent = -1;
  std::vector<int> children;
  int depth = 0;
  int height = 0;  // height of the whole tree
};

// One half of the vector, in pieces.
struct Half {
  Half(const PlanRequest& request, int lane)
      : begin(part_begin(request.count, 2, lane)),
        pieces(Shares::balanced(part_begin(request.count, 2, lane + 1) - begin, request.method.pieces)) {}
  Slice in(int piece) const { return input(begin + pieces.begin(piece), pieces.length(piece)); }
  Slice out(int piece) const { return output(begin + pieces.begin(piece), pieces.length(piece)); }
  Slice all(Buffer buffer) const { return {buffer, begin, pieces.total()}; }

  std::int64_t begin;
  Shares pieces;
};

// One lane. Parent and child agree on a time, in rounds, for each message, and no rank performs a later message before an
// earlier one. So ranks cannot wait for each other in a circle.
class Pipeline {
 public:
  Pipeline(PlanBuilder& plan, const PlanRequest& request, int lane, std::int64_t scratch_begin)
      : plan_(plan),
        node_(request, lane),
        half_(request, lane),
        count_(request.method.pieces),
        up_(request.collective != Collective::broadcast),
        down_(request.collective != Collective::reduce),
        slot_(half_.pieces.longest()),
        scratch_begin_(scratch_begin) {}

  // The end of the scratch that this lane uses.
  std::int64_t scratch_end() const {
    if (!up_ || node_.children.empty()) return scratch_begin_;
    const int arriving = node_.children.size() == 2 ? 2 : 0;
    const int sums = node_.is_root() ? 0 : node_.children.size() == 2 ? 1 : std::min(2, count_);
    return scratch_begin_ + (arriving + sums) * slot_;
  }

  void run() {
    // A child at depth d sends piece i up at time i + height - d; the root sends it down when it is complete.
    const int up_begins = node_.height - node_.depth;
    const int down_begins = (up_ ? node_.height : 0) + node_.depth;
    const int rounds = (up_ && down_ ? 2 : 1) * node_.height + count_ - 1;
    for (int time = 0; time < rounds; ++time) {
      const int arriving = time - up_begins + 1;
      if (up_) {
        receive_from_children(arriving);
        send_to_parent(time - up_begins);
      }
      if (down_) {
        receive_from_parent(time - down_begins + 1);
        send_to_children(time - down_begins);
      }
      plan_.next_round();
      if (up_) add_both_children(arriving);
      plan_.next_round();
    }
    if (!up_ && node_.is_root()) plan_.copy(half_.all(Buffer::input), half_.all(Buffer::output));
  }

 private:
  bool exists(int piece) const { return piece >= 0 && piece < count_; }
  Slice slot(int which, int piece) const { return scratch(scratch_begin_ + which * slot_, half_.pieces.length(piece)); }
  // The vectors of two children lie one after the other.
  Slice both(int piece) const { return scratch(scratch_begin_, 2 * half_.pieces.length(piece)); }
  Slice second(int piece) const { return scratch(scratch_begin_ + half_.pieces.length(piece), half_.pieces.length(piece)); }
  Slice sum(int piece) const {
    if (node_.children.empty()) return half_.in(piece);
    if (node_.is_root()) return half_.out(piece);
    // One sum is sent while the next one arrives. With two children, the next sum is formed after the previous one was sent.
    return slot(node_.children.size() == 2 ? 2 : piece % 2, piece);
  }

  void receive_from_children(int piece) {
    if (node_.children.empty() || !exists(piece)) return;
    if (node_.children.size() == 1) {
      plan_.recv_reduce(node_.children[0], half_.in(piece), sum(piece), node_.is_root());
    } else {
      plan_.recv_reduce(node_.children[0], half_.in(piece), slot(0, piece), false);
      plan_.recv(node_.children[1], second(piece));
    }
  }
  void add_both_children(int piece) {
    if (node_.children.size() == 2 && exists(piece)) plan_.reduce(both(piece), sum(piece), node_.is_root());
  }
  void send_to_parent(int piece) {
    if (!node_.is_root() && exists(piece)) plan_.send(node_.parent, sum(piece));
  }
  void receive_from_parent(int piece) {
    if (!node_.is_root() && exists(piece)) plan_.recv(node_.parent, half_.out(piece));
  }
  void send_to_children(int piece) {
    if (!exists(piece)) return;
    const bool from_input = node_.is_root() && !up_;
    for (const int child : node_.children) plan_.send(child, from_input ? half_.in(piece) : half_.out(piece));
  }

  PlanBuilder& plan_;
  Node node_;
  Half half_;
  int count_;
  bool up_;
  bool down_;
  std::int64_t slot_;
  std::int64_t scratch_begin_;
};

Plan both_trees(const PlanRequest& request) {
  PlanBuilder plan(request);
  if (request.size == 1) {
    plan.copy(input(0, request.count), output(0, request.count));
    return plan.finish();
  }
  Pipeline first(plan, request, 0, 0);
  first.run();
  plan.next_lane();
  Pipeline second(plan, request, 1, first.scratch_end());
  second.run();
  plan.use_scratch(second.scratch_end());
  return plan.finish();
}

// The cost of rounds in one direction, up or down, in which an inner rank exchanges a piece with each of its two children.
Cost rounds_of(const PlanRequest& request, double rounds, double work_an_element) {
  const bool one_child = request.size == 2 && !has_root(request.collective);
  const double messages = (one_child ? 1 : 2) * rounds;
  const double sent = messages * static_cast<double>(request.count) / (2 * request.method.pieces);
  return {rounds, messages, sent, work_an_element * sent};
}
int rooted_height(const PlanRequest& request) { return 1 + InOrderTree{request.size - 1}.height(); }

}  // namespace

// In these formulas, s is the number of pieces, and h = 1 + floor(log2(p-1)) with a root, floor(log2 p) without. They are
// approximate: one tree's bytes may use the time in which the other waits for latency, or may delay the other's bytes.

// (h-1 + s) (alpha + n/s beta) + max(0, 1 - (h-1)/s) n gamma. The last term is the rest of the root's copy when the last
// piece arrives, if copying is as fast as sending.
Cost double_tree_broadcast_cost(const PlanRequest& request) {
  const auto n = static_cast<double>(request.count);
  if (request.size == 1) return {0, 0, 0, n};
  const int pieces = request.method.pieces;
  const double above = rooted_height(request) - 1;
  return rounds_of(request, above + pieces, 0) + Cost{0, 0, 0, std::max(0.0, 1 - above / pieces) * n};
}
Plan double_tree_broadcast(const PlanRequest& request) { return both_trees(request); }

// (h-1 + s) (alpha + n/s (beta + gamma))
Cost double_tree_reduce_cost(const PlanRequest& request) {
  if (request.size == 1) return {0, 0, 0, static_cast<double>(request.count)};
  return rounds_of(request, rooted_height(request) - 1 + request.method.pieces, 1);
}
Plan double_tree_reduce(const PlanRequest& request) { return both_trees(request); }

// (2h-1 + s) alpha + (h-1 + s) n/s (2 beta + gamma), since both directions are in progress in s - 1 rounds; half the bytes
// and work at p = 2
Cost double_tree_all_reduce_cost(const PlanRequest& request) {
  if (request.size == 1) return {0, 0, 0, static_cast<double>(request.count)};
  const double height = InOrderTree{request.size}.height();
  const double one_way = height - 1 + request.method.pieces;
  Cost cost = rounds_of(request, one_way, 1) + rounds_of(request, one_way, 0);
  cost.rounds = height + one_way;
  return cost;
}
Plan double_tree_all_reduce(const PlanRequest& request) { return both_trees(request); }

}  // namespace stretto::plans
