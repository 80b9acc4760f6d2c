#pragma once
#include <utility>
#include <vector>

#include "collectives/plan/nodes.hpp"
#include "collectives/plans/generators.hpp"

// The stages of the plans of two and three levels. The costs are counted from the same stages.
namespace stretto::plans {

enum class Level : std::uint8_t { inside, between };

// The next stage of a rank: a collective with some of the other ranks, or a round of given steps.
struct Stage {
  Level level = Level::inside;
  PlanRequest part;
  std::vector<int> members;  // the part's ranks, as ranks of the whole
  Slice input, output;       // where the part's buffers begin
  bool finishes = true;
  std::vector<Step> steps;  // instead of a part

  bool is_round() const { return members.empty(); }
};

// The cut of every vector, or every block, into pieces. Piece i goes in lane i % lanes. Lanes with equal pieces would run in
// step: all of them inside nodes, and then all of them between nodes. So the first piece of lane l has (l + 1) / lanes of
// the size of the others.
class LaneCut {
 public:
  // Makes one piece if there is only one level, since there is nothing to overlap.
  LaneCut(const Method& method, const Nodes& nodes) {
    if (nodes.count() == 1 || nodes.largest() == 1) return;
    lanes_ = method.lanes;
    pieces_ = method.pieces;
  }

  int lanes() const { return lanes_; }
  int pieces() const { return pieces_; }
  // `piece` may be pieces(), one after the last.
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

// The stages of one piece. Offsets in scratch count from the start of the piece's own scratch; the scratch of the parts
// follows after it.
struct Stages {
  std::vector<Stage> list;
  std::int64_t scratch_count = 0;
};

// Throws Error(invalid_argument) if the method or the nodes do not fit.
void check_levels(const PlanRequest& request, const Nodes& nodes);
Stages stages_of(const PlanRequest& request, const Nodes& nodes, const LaneCut& cut, int piece);
// The number of ranks of a node that send to other nodes at once.
int senders(const PlanRequest& request, const Nodes& nodes);

}  // namespace stretto::plans
