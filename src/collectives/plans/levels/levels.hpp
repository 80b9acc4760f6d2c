#pragma once
#include <utility>
#include <vector>

#include "collectives/plan/nodes.hpp"
#include "collectives/plans/generators.hpp"

// What the plans of two and three levels are made of; their costs are counted from the same stages.
namespace stretto::plans {

enum class Level : std::uint8_t { inside, between };

// What a rank does next: a collective with some of the others, or a round of steps written out.
struct Stage {
  Level level = Level::inside;
  PlanRequest part;
  std::vector<int> members;  // the part's ranks, as ranks of the whole
  Slice input, output;       // where the part's buffers begin
  bool finishes = true;
  std::vector<Step> steps;  // instead of a part

  bool is_round() const { return members.empty(); }
};

// How every vector, or every block, is cut into pieces. Piece i goes in lane i % lanes. Lanes whose pieces are all alike
// would run in step, all of them inside and then all of them between nodes: so lane l's first piece is (l + 1) / lanes of
// the others.
class LaneCut {
 public:
  // In one piece where there is one level, and nothing to do meanwhile.
  LaneCut(const Method& method, const Nodes& nodes) {
    if (nodes.count() == 1 || nodes.largest() == 1) return;
    lanes_ = method.lanes;
    pieces_ = method.pieces;
  }

  int lanes() const { return lanes_; }
  int pieces() const { return pieces_; }
  // Piece may be pieces(), one behind the last.
  std::int64_t begin(std::int64_t count, int piece) const {
    const std::int64_t all = weight_before(pieces_);
    return count / all * weight_before(piece) + count % all * weight_before(piece) / all;
  }

 private:
  std::int64_t weight_before(std::int64_t piece) const {
    const std::int64_t first = std::min<std::int64_t>(piece, lanes_);
    return first * (first + 1) / 2 + (piece - first) * lanes_;
  }

  int lanes_ = 1;
  int pieces_ = 1;
};

struct Piece {
  std::int64_t begin(std::int64_t count) const { return cut.begin(count, number); }
  std::int64_t length(std::int64_t count) const { return cut.begin(count, number + 1) - begin(count); }

  LaneCut cut;
  int number;
};

// The way of one piece. What lies in scratch is counted from where the piece's own begins; the parts' own lies behind it.
struct Stages {
  std::vector<Stage> list;
  std::int64_t scratch_count = 0;
};

// Throws Error(invalid_argument) for a method or nodes that do not fit.
void check_levels(const PlanRequest& request, const Nodes& nodes);
Stages stages_of(const PlanRequest& request, const Nodes& nodes, const LaneCut& cut, int piece);
// How many ranks of a node send to others at once.
int senders(const PlanRequest& request, const Nodes& nodes);

}  // namespace stretto::plans
