// Two and three levels: every piece goes through its stages (levels.cpp), and the pieces of one lane follow each other.
// While one lane's piece travels between nodes, another lane's piece works inside nodes.
#include <algorithm>

#include "collectives/plans/levels/levels.hpp"
#include "collectives/plans/levels/part_plans.hpp"
#include "core/fail.hpp"

namespace stretto::plans {
namespace {

Slice behind(std::int64_t begin, Slice slice) {
  if (slice.buffer == Buffer::scratch) slice.offset += begin;
  return slice;
}

struct PlannedPiece {
  Stages stages;
  std::vector<const Plan*> parts;  // by stage; nullptr for a round

  std::size_t steps() const {
    std::size_t steps = 0;
    for (std::size_t k = 0; k < parts.size(); ++k) {
      steps += parts[k] != nullptr ? parts[k]->lanes.front().steps.size() : stages.list[k].steps.size();
    }
    return steps;
  }
};

PlannedPiece planned(Stages stages, const PlanRequest& whole, PartPlans& parts) {
  PlannedPiece piece{std::move(stages), {}};
  piece.parts.reserve(piece.stages.list.size());
  for (const Stage& stage : piece.stages.list) {
    const Plan* const part = stage.is_round() ? nullptr : &parts.of(stage.part);
    require(part == nullptr || part->lanes.size() == 1, "{} has {} lanes; a part of {} can have one.",
            name(stage.part.method.algorithm), part == nullptr ? 0 : part->lanes.size(), name(whole.method.algorithm));
    piece.parts.push_back(part);
  }
  return piece;
}

// The elements that a part need not copy, since its input is already in its place in the output. Bruck packs them anyway,
// and the copy of a chain's first rank is not on the critical path.
double copy_saved(const Stage& stage) {
  const PlanRequest& part = stage.part;
  const bool gathers = part.collective == Collective::all_gather || part.collective == Collective::gather;
  const bool scatters = part.collective == Collective::scatter;
  if (!gathers && !scatters && part.collective != Collective::broadcast) return 0;
  if (part.method.algorithm == Algorithm::bruck || part.method.algorithm == Algorithm::chain) return 0;
  const std::int64_t share = gathers || scatters ? Shares::of(part).begin(part.rank) : 0;
  if (stage.input.buffer != stage.output.buffer) return 0;
  if (stage.input.offset + (scatters ? share : 0) != stage.output.offset + (gathers ? share : 0)) return 0;
  return gathers || scatters ? longest_share(part) : static_cast<double>(part.count);
}

Cost cost_of_steps(const std::vector<Step>& steps) {
  Cost cost;
  double received = 0;
  double received_messages = 0;
  for (const Step& step : steps) {
    const auto source = static_cast<double>(step.source.count);
    const auto destination = static_cast<double>(step.destination.count);
    switch (step.kind) {
      case StepKind::send: cost = cost + Cost{0, 1, source, 0}; break;
      case StepKind::recv:
        received += destination;
        ++received_messages;
        break;
      case StepKind::reduce: cost.work += source - destination; break;
      default: cost.work += destination;
    }
  }
  cost.messages = std::max(cost.messages, received_messages);
  cost.sent = std::max(cost.sent, received);
  cost.rounds = cost.messages > 0 ? 1 : 0;
  return cost;
}

Cost longest(const Cost& a, const Cost& b) {
  return {std::max(a.rounds, b.rounds), std::max(a.messages, b.messages), std::max(a.sent, b.sent),
          std::max(a.work, b.work),     std::max(a.packed, b.packed),     std::max(a.quantized, b.quantized)};
}

LevelCost cost_of_rank(const PlanRequest& request, const Nodes& nodes) {
  const LaneCut cut(request.method, nodes);
  LevelCost cost;
  for (int piece = 0; piece < cut.pieces(); ++piece) {
    for (const Stage& stage : stages_of(request, nodes, cut, piece).list) {
      Cost& level = stage.level == Level::inside ? cost.inside : cost.between;
      if (stage.is_round()) {
        level = level + cost_of_steps(stage.steps);
      } else {
        level = level + cost_of(stage.part);
        level.work -= copy_saved(stage);
      }
    }
  }
  return cost;
}

}  // namespace

const Plan& PartPlans::of(const PlanRequest& part) {
  const auto known = plans_.find(part);
  if (known != plans_.end()) return known->second;
  Plan plan = make_plan(part, *this);  // this may add parts of the part
  return plans_.emplace(part, std::move(plan)).first->second;
}

Plan two_level(const PlanRequest& request, PartPlans& parts) {
  const Nodes nodes = Nodes::of(request);
  check_levels(request, nodes);
  const LaneCut cut(request.method, nodes);
  std::vector<PlannedPiece> pieces;
  pieces.reserve(cut.pieces());
  std::int64_t scratch_of_lane = 0;
  for (int i = 0; i < cut.pieces(); ++i) {
    const PlannedPiece& piece = pieces.emplace_back(planned(stages_of(request, nodes, cut, i), request, parts));
    scratch_of_lane = std::max(scratch_of_lane, piece.stages.scratch_count);
    for (const Plan* part : piece.parts) {
      scratch_of_lane = std::max(scratch_of_lane, piece.stages.scratch_count + (part != nullptr ? part->scratch_count : 0));
    }
  }

  const auto steps_of = [&](int lane) {
    std::size_t steps = 0;
    for (int i = lane; i < cut.pieces(); i += cut.lanes()) steps += pieces[i].steps();
    return steps;
  };
  PlanBuilder plan(request, steps_of(0));
  for (int lane = 0; lane < cut.lanes(); ++lane) {
    if (lane > 0) plan.next_lane(steps_of(lane));
    const std::int64_t begin = lane * scratch_of_lane;
    for (int i = lane; i < cut.pieces(); i += cut.lanes()) {
      const PlannedPiece& piece = pieces[i];
      for (std::size_t k = 0; k < piece.parts.size(); ++k) {
        const Stage& stage = piece.stages.list[k];
        if (stage.is_round()) {
          plan.append_round(stage.steps, begin);
          continue;
        }
        plan.append(
            *piece.parts[k], [&](int member) { return stage.members[member]; },
            {behind(begin, stage.input), behind(begin, stage.output), begin + piece.stages.scratch_count, stage.finishes});
      }
    }
  }
  plan.use_scratch(cut.lanes() * scratch_of_lane);
  return plan.finish();
}
Plan two_level(const PlanRequest& request) {
  PartPlans parts;
  return two_level(request, parts);
}

// The sum of the parts' costs over all pieces, and n gamma for each time that blocks are brought into another order. For n
// bytes, p = m M ranks (m on a node, M nodes) and rings on both levels, a piece of n bytes costs:
// all_reduce: 2 (m-1) alpha + 2 (m-1)/m n beta + (m-1)/m n gamma inside; the same of M and n/m between
// reduce_scatter, all_gather: half of these rounds and bytes, and n gamma in addition
// all_to_all (by pairwise): (m-1) alpha + (m-1)/m n beta inside, (M-1) alpha + (M-1)/M n beta between, and 2 n gamma in
// addition
// broadcast: alpha + (m-1)/m n beta for a direct scatter, then as all_gather inside; between as the part, of n/m
// reduce: the same in reverse
// If the algorithm inside cannot gather (or reduce and scatter), the parts of broadcast (or reduce) have n bytes.
// If nodes differ, the largest node costs most inside. The smallest costs most between, because its ranks carry most.
LevelCost two_level_cost_by_level(const PlanRequest& request) {
  const Nodes nodes = Nodes::of(request);
  check_levels(request, nodes);
  PlanRequest first = request;  // has the longest share, and no rank does more than the root
  first.rank = has_root(request.collective) ? request.root : 0;
  LevelCost cost = cost_of_rank(first, nodes);
  for (int node = 0; node < nodes.count() && !nodes.alike(); ++node) {
    if (nodes.size(node) != nodes.largest() && nodes.size(node) != nodes.smallest()) continue;
    first.rank = nodes.first(node);
    const LevelCost its = cost_of_rank(first, nodes);
    cost.inside = longest(cost.inside, its.inside);
    cost.between = longest(cost.between, its.between);
  }
  cost.senders = senders(request, nodes);
  return cost;
}
Cost two_level_cost(const PlanRequest& request) {
  const LevelCost cost = two_level_cost_by_level(request);
  return cost.inside + cost.between;
}

}  // namespace stretto::plans
