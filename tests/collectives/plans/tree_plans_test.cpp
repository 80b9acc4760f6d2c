// What the trees promise beside being right: how much goes through the busiest rank, and how it is spread.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "stretto/planning/cost.hpp"

namespace stretto {
namespace {

Plan plan_of(Collective collective, const Method& method, int rank, int size, std::int64_t count, int root) {
  return make_plan({collective, method, rank, size, count, root});
}

Method in_pieces(Algorithm algorithm, int pieces) {
  Method method(algorithm);
  method.pieces = pieces;
  return method;
}

struct Traffic {
  std::int64_t messages = 0;
  std::int64_t elements = 0;
};
Traffic traffic(const Plan& plan, bool sent) {
  Traffic sum;
  for (const Lane& lane : plan.lanes) {
    for (const Step& step : lane.steps) {
      if (step.peer < 0 || (step.kind == StepKind::send) != sent) continue;
      ++sum.messages;
      sum.elements += sent ? step.source.count : step.destination.count;
    }
  }
  return sum;
}

// The formulas are those of the root's way.
TEST(Knomial, CostIsWhatTheRootSendsOrReceives) {
  for (const Algorithm algorithm : {Algorithm::binomial, Algorithm::knomial}) {
    for (const Collective collective :
         {Collective::broadcast, Collective::reduce, Collective::gather, Collective::scatter}) {
      for (int size = 1; size <= 70; ++size) {
        const bool sends = collective == Collective::broadcast || collective == Collective::scatter;
        for (const int root : {0, size / 2, size - 1}) {
          const Plan plan = plan_of(collective, algorithm, root, size, 3, root);
          const Traffic ours = traffic(plan, sends);
          const Cost cost = cost_of(plan.request);
          EXPECT_EQ(ours.messages, cost.messages) << plan.to_string();
          EXPECT_EQ(ours.elements, cost.sent) << plan.to_string();
        }
      }
    }
  }
}

TEST(Knomial, RadixFourHalvesTheRounds) {
  for (int size = 2; size <= 300; ++size) {
    const double two = cost_of({Collective::broadcast, Algorithm::binomial, 0, size, 1}).rounds;
    const double four = cost_of({Collective::broadcast, Algorithm::knomial, 0, size, 1}).rounds;
    EXPECT_EQ(four, static_cast<int>(two + 1) / 2) << size;
  }
}

TEST(Chain, EveryRankPassesTheVectorOnOnceWithTwoPiecesOfScratch) {
  for (const Collective collective : {Collective::broadcast, Collective::reduce}) {
    for (int rank = 0; rank < 6; ++rank) {
      const Plan plan = plan_of(collective, in_pieces(Algorithm::chain, 10), rank, 6, 100, 2);
      const int end = collective == Collective::broadcast ? 1 : 2;  // where the vector stays
      EXPECT_EQ(plan.elements_sent(), rank == end ? 0 : 100);
      EXPECT_LE(plan.scratch_count, 20);
      // The root of a broadcast has its copy to make, too.
      EXPECT_LE(plan.rounds(), 10 + 1);
    }
  }
}

TEST(DoubleBinaryTree, NobodyButTheRootHasChildrenInBothTrees) {
  for (int size = 2; size <= 70; ++size) {
    for (const int root : {0, size / 3}) {
      for (int rank = 0; rank < size; ++rank) {
        if (rank == root) continue;
        const Plan plan = plan_of(Collective::broadcast, Algorithm::double_binary_tree, rank, size, 2, root);
        int with_children = 0;
        for (const Lane& lane : plan.lanes) {
          with_children +=
              std::any_of(lane.steps.begin(), lane.steps.end(), [](const Step& step) { return step.kind == StepKind::send; })
                  ? 1
                  : 0;
        }
        EXPECT_LE(with_children, 1) << plan.to_string();
        EXPECT_LE(plan.elements_sent(), 2);
      }
    }
    for (int rank = 0; rank < size; ++rank) {
      const Plan plan = plan_of(Collective::all_reduce, Algorithm::double_binary_tree, rank, size, 2, 0);
      EXPECT_LE(traffic(plan, true).elements, 4);
      EXPECT_LE(traffic(plan, false).elements, 4);
    }
  }
}

// An all-reduce sends pieces down while others still go up.
TEST(DoubleBinaryTree, GoesBothWaysAtOnce) {
  const int pieces = 8;
  const Cost both = cost_of({Collective::all_reduce, in_pieces(Algorithm::double_binary_tree, pieces), 0, 16, 64});
  const Cost one = cost_of({Collective::all_reduce, Algorithm::double_binary_tree, 0, 16, 64});
  EXPECT_EQ(one.rounds, 2 * 4);
  EXPECT_EQ(both.rounds, 2 * 4 + pieces - 1);
  bool meets = false;
  for (int rank = 0; rank < 16; ++rank) {
    const Plan plan = plan_of(Collective::all_reduce, in_pieces(Algorithm::double_binary_tree, pieces), rank, 16, 64, 0);
    for (const Lane& lane : plan.lanes) {
      std::size_t at = 0;
      for (const std::size_t end : lane.round_ends) {
        std::set<int> to;
        std::set<int> from;
        for (; at < end; ++at) {
          if (lane.steps[at].peer >= 0) (lane.steps[at].kind == StepKind::send ? to : from).insert(lane.steps[at].peer);
        }
        meets |= std::any_of(to.begin(), to.end(), [&](int peer) { return from.count(peer) > 0; });
      }
    }
  }
  EXPECT_TRUE(meets);
}

TEST(ScatterAllGather, BringsNoShareTwice) {
  for (int size = 1; size <= 40; ++size) {
    const std::int64_t count = 3L * size;
    for (int rank = 0; rank < size; ++rank) {
      const Plan plan = plan_of(Collective::broadcast, Algorithm::scatter_all_gather, rank, size, count, size / 2);
      EXPECT_EQ(traffic(plan, false).elements, rank == size / 2 ? 0 : count);
      EXPECT_LE(plan.elements_sent(), 2 * (size - 1) * count / size);
      EXPECT_EQ(plan.scratch_count, 0);
    }
  }
}

TEST(ReduceScatterGather, EveryRankFinishesOneShare) {
  for (const int size : {2, 3, 4, 6, 8, 12, 16}) {
    const std::int64_t count = 4L * size;
    for (int rank = 0; rank < size; ++rank) {
      const Plan plan = plan_of(Collective::reduce, Algorithm::reduce_scatter_gather, rank, size, count, 1);
      EXPECT_LE(plan.elements_sent(), 2 * (size - 1) * count / size);
      std::int64_t finished = 0;
      for (const Step& step : plan.lanes[0].steps) finished += step.finishes ? step.destination.count : 0;
      EXPECT_EQ(finished, count / size);
    }
  }
}

}  // namespace
}  // namespace stretto
