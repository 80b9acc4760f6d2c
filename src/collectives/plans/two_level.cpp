// Two levels: collectives inside nodes, of m ranks each, and between the ranks that have the same place on their M nodes;
// each by an algorithm of its own, so that few bytes cross the slow boundary and all ranks of a node share them. Blocks that
// a part wants side by side are brought together by copies through scratch.
#include <utility>
#include <vector>

#include "collectives/plans/generators.hpp"
#include "core/fail.hpp"

namespace stretto::plans {
namespace {

enum class Level : std::uint8_t { inside, between };

// What the rank does next: a collective with the others of its level, or a transposition of blocks by itself.
struct Stage {
  Level level = Level::inside;
  PlanRequest part;
  Slice input, output;  // where the part's buffers begin
  bool finishes = true;
  // input holds a matrix of blocks, row by row, and output gets it column by column; 0 rows: this is a collective.
  int rows = 0;
  int columns = 0;
};

struct Stages {
  explicit Stages(const PlanRequest& request) : whole(request), ranks(request.ranks_per_node), nodes(request.size / ranks) {}

  int node() const { return whole.rank / ranks; }
  int local() const { return whole.rank % ranks; }
  int rank_of(Level level, int i) const { return level == Level::inside ? node() * ranks + i : i * ranks + local(); }
  bool staged() const { return ranks > 1 && nodes > 1; }

  // Count is as in PlanRequest.
  void add(Level level, Collective collective, std::int64_t count, const Slice& from, const Slice& to, bool finishes) {
    const bool inside = level == Level::inside;
    PlanRequest part{
        collective, inside ? whole.method.inside : whole.method.between, inside ? local() : node(), inside ? ranks : nodes,
        count,      inside ? whole.root % ranks : whole.root / ranks};
    stages.push_back({level, std::move(part), from, to, finishes});
  }
  void add_shares(Level level, Collective collective, const Shares& shares, const Slice& from, const Slice& to,
                  bool finishes) {
    add(level, collective, 0, from, to, finishes);
    PlanRequest& part = stages.back().part;
    if (shares.total() % part.size == 0) {
      part.count = shares.total() / part.size;
    } else {
      for (int i = 0; i < part.size; ++i) part.counts.push_back(shares.length(i));
    }
  }
  void add_transposition(int rows, int columns, std::int64_t block, const Slice& from, const Slice& to) {
    stages.push_back({Level::inside, {}, from, to, false, rows, columns});
    stages.back().part.count = block;
  }

  const PlanRequest& whole;
  int ranks;  // on a node
  int nodes;
  std::vector<Stage> stages;
  std::int64_t scratch_count = 0;  // of the stages themselves; the parts' own lies behind it
};

// On one node, or with one rank a node, one level does it all.
void one_level(Stages& s) {
  s.add(s.ranks > 1 ? Level::inside : Level::between, s.whole.collective, s.whole.count, input(0, 0), output(0, 0), true);
}

void all_reduce(Stages& s) {
  if (s.ranks == 1) return one_level(s);
  const Shares shares = Shares::balanced(s.whole.count, s.ranks);
  const std::int64_t n = shares.length(s.local());
  const Slice own = output(shares.begin(s.local()), n);
  s.add_shares(Level::inside, Collective::reduce_scatter, shares, input(0, 0), own, s.nodes == 1);
  if (s.nodes > 1) s.add(Level::between, Collective::all_reduce, n, own, own, true);
  s.add_shares(Level::inside, Collective::all_gather, shares, own, output(0, 0), false);
}

// The blocks are brought into the order of places, then nodes: a place's are reduced to it as one share.
void reduce_scatter(Stages& s) {
  if (!s.staged()) return one_level(s);
  const std::int64_t block = s.whole.count;
  const Slice own = scratch(s.local() * s.nodes * block, 0);
  s.add_transposition(s.nodes, s.ranks, block, input(0, 0), scratch(0, 0));
  s.add(Level::inside, Collective::reduce_scatter, s.nodes * block, scratch(0, 0), own, false);
  s.add(Level::between, Collective::reduce_scatter, block, own, output(0, 0), true);
  s.scratch_count = s.whole.size * block;
}

// The same, backwards.
void all_gather(Stages& s) {
  if (!s.staged()) return one_level(s);
  const std::int64_t block = s.whole.count;
  const Slice own = scratch(s.local() * s.nodes * block, 0);
  s.add(Level::between, Collective::all_gather, block, input(0, 0), own, false);
  s.add(Level::inside, Collective::all_gather, s.nodes * block, own, scratch(0, 0), false);
  s.add_transposition(s.ranks, s.nodes, block, scratch(0, 0), output(0, 0));
  s.scratch_count = s.whole.size * block;
}

// Inside, every rank gets what its node has for all ranks of its own place; between, everything comes home.
void all_to_all(Stages& s) {
  if (!s.staged()) return one_level(s);
  const std::int64_t block = s.whole.count;
  const std::int64_t n = s.whole.size * block;
  s.add_transposition(s.nodes, s.ranks, block, input(0, 0), scratch(0, 0));
  s.add(Level::inside, Collective::all_to_all, s.nodes * block, scratch(0, 0), scratch(n, 0), false);
  s.add_transposition(s.ranks, s.nodes, block, scratch(n, 0), scratch(0, 0));
  s.add(Level::between, Collective::all_to_all, s.ranks * block, scratch(0, 0), output(0, 0), false);
  s.scratch_count = 2 * n;
}

void broadcast(Stages& s) {
  if (!s.staged()) return one_level(s);
  const std::int64_t n = s.whole.count;
  const bool beside_root = s.local() == s.whole.root % s.ranks;
  if (beside_root) s.add(Level::between, Collective::broadcast, n, input(0, 0), output(0, 0), false);
  s.add(Level::inside, Collective::broadcast, n, output(0, 0), output(0, 0), false);
}

void reduce(Stages& s) {
  if (!s.staged()) return one_level(s);
  const std::int64_t n = s.whole.count;
  const bool is_root = s.whole.rank == s.whole.root;
  const bool beside_root = s.local() == s.whole.root % s.ranks;
  // Only the root has an output.
  const Slice node_sum = is_root ? output(0, 0) : scratch(0, 0);
  s.add(Level::inside, Collective::reduce, n, input(0, 0), node_sum, false);
  if (!beside_root) return;
  s.add(Level::between, Collective::reduce, n, node_sum, output(0, 0), true);
  s.scratch_count = is_root ? 0 : n;
}

void check(const PlanRequest& request) {
  require(request.ranks_per_node > 0 && request.size % request.ranks_per_node == 0,
          "two_level needs nodes of equal size, and {} ranks cannot lie on nodes of {}; give ranks_per_node, or choose an "
          "algorithm of one level.",
          request.size, request.ranks_per_node);
  require(request.counts.empty(), "{} by two_level takes one count for all ranks, not {} counts; choose another algorithm.",
          name(request.collective), request.counts.size());
  for (const Algorithm part : {request.method.inside, request.method.between}) {
    const bool several_lanes = part == Algorithm::bidirectional_ring || part == Algorithm::double_binary_tree;
    require(part != Algorithm::automatic && part != Algorithm::two_level && !several_lanes,
            "{} has {} as a part; name two algorithms of one level and one lane, like two_level(ring+ring).",
            to_string(request.method), name(part));
    require(!shares_memory(part), "{} has {} as a part, whose ranks share memory; name two algorithms that send messages.",
            to_string(request.method), name(part));
  }
}

Stages stages_of(const PlanRequest& request) {
  check(request);
  Stages stages(request);
  switch (request.collective) {
    case Collective::all_reduce: all_reduce(stages); break;
    case Collective::reduce_scatter: reduce_scatter(stages); break;
    case Collective::all_gather: all_gather(stages); break;
    case Collective::all_to_all: all_to_all(stages); break;
    case Collective::broadcast: broadcast(stages); break;
    case Collective::reduce: reduce(stages); break;
    default: fail(ErrorCode::internal, "{} has no two levels.", name(request.collective));
  }
  return stages;
}

Slice at(const Slice& base, std::int64_t offset, std::int64_t count) { return {base.buffer, base.offset + offset, count}; }

void transpose(PlanBuilder& plan, const Stage& stage) {
  const std::int64_t block = stage.part.count;
  plan.next_round();
  for (int row = 0; row < stage.rows; ++row) {
    for (int column = 0; column < stage.columns; ++column) {
      plan.copy(at(stage.input, (row * stage.columns + column) * block, block),
                at(stage.output, (column * stage.rows + row) * block, block));
    }
  }
}

}  // namespace

Plan two_level(const PlanRequest& request) {
  PlanBuilder plan(request);
  const Stages stages = stages_of(request);
  plan.use_scratch(stages.scratch_count);
  for (const Stage& stage : stages.stages) {
    if (stage.rows > 0) {
      transpose(plan, stage);
      continue;
    }
    const Plan part = make_plan(stage.part);
    require(part.lanes.size() == 1, "{} has {} lanes; a part of two_level can have one.",
            name(part.request.method.algorithm), part.lanes.size());
    plan.append(part, {[&](int i) { return stages.rank_of(stage.level, i); }, stage.input, stage.output,
                       stages.scratch_count, stage.finishes});
  }
  return plan.finish();
}

// What a part need not copy since its input is already in its place in the output. Bruck packs it all the same, and the copy
// of a chain's first rank is not on the longest way.
double copy_saved(const Stage& stage) {
  const PlanRequest& part = stage.part;
  const bool gathers = part.collective == Collective::all_gather;
  if (!gathers && part.collective != Collective::broadcast) return 0;
  if (part.method.algorithm == Algorithm::bruck || part.method.algorithm == Algorithm::chain) return 0;
  const std::int64_t place = stage.output.offset + (gathers ? Shares::of(part).begin(part.rank) : 0);
  if (stage.input.buffer != stage.output.buffer || stage.input.offset != place) return 0;
  return gathers ? longest_share(part) : static_cast<double>(part.count);
}

// The sum of the parts' costs, and n gamma for each transposition. With n bytes, p = m M ranks and both levels by ring:
// all_reduce: 2 (m-1) alpha + 2 (m-1)/m n beta + (m-1)/m n gamma inside; the same of M and n/m between
// reduce_scatter, all_gather: half of these rounds and bytes, and n gamma more
// all_to_all (by pairwise): (m-1) alpha + (m-1)/m n beta inside, (M-1) alpha + (M-1)/M n beta between, and 2 n gamma more
LevelCost two_level_cost_by_level(const PlanRequest& request) {
  PlanRequest first = request;  // has the longest share, and nobody does more than the root
  first.rank = has_root(request.collective) ? request.root : 0;
  LevelCost cost;
  const Stages stages = stages_of(first);
  for (const Stage& stage : stages.stages) {
    Cost& level = stage.level == Level::inside ? cost.inside : cost.between;
    if (stage.rows > 0) {
      level.work += static_cast<double>(request.size) * static_cast<double>(stage.part.count);
    } else {
      level = level + cost_of(stage.part);
      level.work -= copy_saved(stage);
    }
  }
  return cost;
}
Cost two_level_cost(const PlanRequest& request) {
  const LevelCost cost = two_level_cost_by_level(request);
  return cost.inside + cost.between;
}

}  // namespace stretto::plans
