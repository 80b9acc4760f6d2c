// Roots that need no proof of their own, and plans of one root with a fault, which must not hide behind those of another.
#include "collectives/proof/root_proofs.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "stretto/error.hpp"
#include "stretto/planning/proof.hpp"
#include "support/error.hpp"

namespace stretto {
namespace {

constexpr int group_size = 5;

std::vector<Plan> plans_for(Collective collective, const Method& method, int root, int ranks_per_node = 0) {
  PlanRequest request{.collective = collective, .method = method, .size = group_size, .count = 11, .root = root};
  if (ranks_per_node > 0) {
    request.size = 3 * ranks_per_node;
    request.ranks_per_node = ranks_per_node;
  }
  return plans_of({request, false});
}

// How many of all roots are verified.
int verified(Collective collective, const Method& method, int ranks_per_node = 0) {
  RootProofs proofs;
  const int roots = ranks_per_node > 0 ? 3 * ranks_per_node : group_size;
  for (int root = 0; root < roots; ++root) {
    EXPECT_EQ(proofs.prove(plans_for(collective, method, root, ranks_per_node)).value_or(""), "");
  }
  return proofs.verified();
}

TEST(RootProofs, VerifyOneRootWhereTheOthersAreItsRotations) {
  using enum Algorithm;
  for (const Algorithm algorithm :
       {binomial, knomial, double_binary_tree, chain, scatter_all_gather, direct, packet, pull}) {
    EXPECT_EQ(verified(Collective::broadcast, algorithm), 1) << name(algorithm);
  }
  for (const Algorithm algorithm : {binomial, knomial, double_binary_tree, chain, reduce_scatter_gather}) {
    EXPECT_EQ(verified(Collective::reduce, algorithm), 1) << name(algorithm);
  }
}

TEST(RootProofs, VerifyTheRootsOfOneNode) {
  const Method method = method_from_text("two_level(ring+binomial)*2/3");
  EXPECT_EQ(verified(Collective::broadcast, method, 4), 4);
  EXPECT_EQ(verified(Collective::reduce, method, 4), 4);
}

// The share that a rank writes to all does not move with the root; and buffers of a gather hold shares in rank order.
TEST(RootProofs, VerifyEveryRootWhereTheyAreNoRotations) {
  EXPECT_EQ(verified(Collective::broadcast, Algorithm::push), group_size);
  EXPECT_EQ(verified(Collective::gather, Algorithm::direct), group_size);
  EXPECT_EQ(verified(Collective::scatter, Algorithm::binomial), group_size);
}

// What is in rank order at root 0 is in another order when all ranks are renamed.
TEST(RootProofs, VerifyEveryRootWhereSumsAreInRankOrder) {
  EXPECT_EQ(verified(Collective::reduce, Algorithm::direct), group_size);
  RootProofs proofs;
  const std::vector<Plan> plans = plans_for(Collective::reduce, Algorithm::direct, 0);
  ASSERT_FALSE(proofs.prove(plans));
  std::vector<Plan> renamed;
  for (int rank = 0; rank < group_size; ++rank) {
    renamed.push_back(plans[(rank + 2) % group_size]);  // rank 3 is root
    renamed.back().request.rank = rank;
    renamed.back().request.root = 3;
    for (Step& step : renamed.back().lanes[0].steps) step.peer = step.peer < 0 ? step.peer : (step.peer + 3) % group_size;
  }
  EXPECT_THAT(proofs.prove(renamed).value_or(""), testing::HasSubstr("another order than that of the ranks"));
}

// A fault of root 3's plans alone, at every step of every rank, behind proofs of roots 0, 1 and 2.
TEST(RootProofs, FindAFaultOfOneRootAlone) {
  using Mutation = void (*)(Plan&, Lane&, Step&);
  const std::vector<Mutation> mutations{
      [](Plan&, Lane&, Step& step) { ++(step.kind == StepKind::send ? step.source : step.destination).offset; },
      [](Plan&, Lane&, Step& step) { --(step.kind == StepKind::send ? step.source : step.destination).count; },
      [](Plan& plan, Lane&, Step& step) {
        do step.peer = (step.peer + 1) % group_size;
        while (step.peer == plan.request.rank);
      },
      [](Plan&, Lane&, Step& step) { step.finishes = !step.finishes; },
      [](Plan&, Lane&, Step& step) { step.kind = step.kind == StepKind::send ? StepKind::recv : StepKind::send; },
      [](Plan&, Lane& lane, Step&) { lane.round_ends.pop_back(); },
      [](Plan& plan, Lane& lane, Step&) { plan.lanes.push_back(Lane(lane)); },
  };
  for (const Collective collective : {Collective::broadcast, Collective::reduce}) {
    RootProofs proofs;
    for (const int root : {0, 1, 2}) ASSERT_FALSE(proofs.prove(plans_for(collective, Algorithm::binomial, root)));
    const std::vector<Plan> good = plans_for(collective, Algorithm::binomial, 3);
    int refused = 0;
    for (const Mutation& mutation : mutations) {
      for (std::size_t rank = 0; rank < good.size(); ++rank) {
        for (std::size_t i = 0; i < good[rank].lanes[0].steps.size(); ++i) {
          std::vector<Plan> plans = good;
          if (plans[rank].lanes[0].steps[i].kind == StepKind::copy) continue;
          mutation(plans[rank], plans[rank].lanes[0], plans[rank].lanes[0].steps[i]);
          EXPECT_TRUE(proofs.prove(plans)) << plans[rank].to_string();
          ++refused;
        }
      }
    }
    EXPECT_EQ(refused, static_cast<int>(mutations.size()) * 2 * (group_size - 1));  // each message has two ends
    EXPECT_EQ(proofs.prove(good).value_or(""), "");
    EXPECT_EQ(proofs.verified(), 1 + refused);
  }
}

// Plans of root 0 that only say that they are for root 3, and plans for another count.
TEST(RootProofs, CompareWhatIsAskedForAsWell) {
  RootProofs proofs;
  ASSERT_FALSE(proofs.prove(plans_for(Collective::broadcast, Algorithm::binomial, 0)));
  std::vector<Plan> plans = plans_for(Collective::broadcast, Algorithm::binomial, 0);
  for (Plan& plan : plans) plan.request.root = 3;
  EXPECT_TRUE(proofs.prove(plans));
  plans = plans_for(Collective::broadcast, Algorithm::binomial, 3);
  for (Plan& plan : plans) ++plan.request.count;
  EXPECT_THAT(proofs.prove(plans).value_or(""), testing::HasSubstr("never written"));
  plans = plans_for(Collective::broadcast, Algorithm::binomial, 3);
  plans[1].request.root = 2;
  EXPECT_THAT(proofs.prove(plans).value_or(""), testing::HasSubstr("another collective"));
}

TEST(Proofs, OfManyCasesGiveTheSameOnSeveralThreads) {
  const std::vector<ProofCase> cases = proof_cases(Collective::broadcast, Algorithm::two_level, 12);
  for (const int threads : {1, 4}) EXPECT_EQ(prove(cases, threads).value_or(""), "");
}

// Whichever thread comes upon the second first.
TEST(Proofs, OfManyCasesStopAtTheFirstThatIsWrong) {
  std::vector<ProofCase> cases = proof_cases(Collective::all_reduce, Algorithm::ring, 8);
  cases[2].request.root = 8;
  cases.back().request.root = 9;
  for (const int threads : {1, 4}) {
    EXPECT_THAT(sentence_of([&] { prove(cases, threads); }), testing::HasSubstr("root or peer 8"));
  }
}

}  // namespace
}  // namespace stretto
