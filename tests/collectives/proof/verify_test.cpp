// What the verifier proves, and what it refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "collectives/plan/plan_builder.hpp"
#include "plans_by_hand.hpp"
#include "stretto/error.hpp"
#include "stretto/planning/proof.hpp"

namespace stretto {
namespace {

TEST(Verifier, ProvesPlansByHand) {
  for (const int size : {1, 2, 3, 8}) {
    for (const auto& plans : plans_by_hand(size)) {
      const Collective collective = plans[0].request.collective;
      EXPECT_EQ(verify(plans, false).value_or(""), "") << name(collective);
      if (!can_be_in_place(collective)) continue;
      EXPECT_EQ(verify(plans, true).value_or(""), "") << name(collective);
    }
  }
}

TEST(Verifier, RefusesCountsThatDoNotMatch) {
  auto plans = exchange_by_hand(Collective::all_to_all, 3, true);
  ++plans[1].request.counts[2];
  EXPECT_THAT(verify(plans, false).value_or(""), testing::HasSubstr("Ranks 1 and 2 send each other"));
  plans = exchange_by_hand(Collective::gather, 3, true);
  ++plans[1].request.counts[2];
  EXPECT_THAT(verify(plans, false).value_or(""), testing::HasSubstr("counts than rank 0's"));
}

TEST(Verifier, RefusesASecondFinish) {
  auto plans = all_reduce_by_hand(2, 1);
  plans[0].lanes[0].steps.push_back({StepKind::reduce, true, -1, output(0, 1), output(0, 1)});
  plans[0].lanes[0].round_ends.push_back(plans[0].lanes[0].steps.size());
  EXPECT_THAT(verify(plans, false).value_or(""), testing::HasSubstr("after it was finished"));
}

// Algorithms that are deterministic promise the order of ranks; others do not.
TEST(Verifier, RefusesSumsInAnotherOrderThanThatOfTheRanks) {
  std::vector<Plan> plans;
  for (int rank = 0; rank < 3; ++rank) plans.push_back(make_plan({Collective::all_reduce, Algorithm::one_shot, rank, 3, 2}));
  EXPECT_EQ(verify(plans, false).value_or(""), "");
  for (Step& step : plans[0].lanes[0].steps) {  // rank 0 has the vectors of ranks 1 and 2 change places
    if (step.kind == StepKind::recv) step.destination = scratch(2 * (3 - step.peer), 2);
  }
  EXPECT_THAT(verify(plans, false).value_or(""), testing::HasSubstr("in another order than that of the ranks"));
  for (Plan& plan : plans) plan.request.method = Algorithm::ring;
  EXPECT_EQ(verify(plans, false).value_or(""), "");

  plans.clear();
  for (int rank = 0; rank < 70; ++rank) {  // whose contributors take more than a word
    plans.push_back(make_plan({Collective::reduce_scatter, Algorithm::pairwise, rank, 70, 1}));
  }
  EXPECT_EQ(verify(plans, false).value_or(""), "");
  for (Plan& plan : plans) plan.request.method = Algorithm::direct;
  EXPECT_THAT(verify(plans, false).value_or(""), testing::HasSubstr("in another order than that of the ranks"));
}

// Reading and writing the same memory is fine element by element, but not shifted.
TEST(Verifier, RefusesACopyThatOverlapsItself) {
  auto plans = exchange_by_hand(Collective::scatter, 1, false);
  Lane& lane = plans[0].lanes[0];
  plans[0].scratch_count = 4;
  lane.steps.push_back({StepKind::copy, false, -1, output(0, 3), scratch(0, 3)});
  lane.round_ends.push_back(lane.steps.size());
  EXPECT_EQ(verify(plans, false).value_or(""), "");
  lane.steps.push_back({StepKind::copy, false, -1, scratch(0, 3), scratch(1, 3)});
  lane.round_ends.push_back(lane.steps.size());
  EXPECT_THAT(verify(plans, false).value_or(""), testing::HasSubstr("the same step writes elsewhere"));
}

TEST(Verifier, HasNothingToProveInPlaceWhereThereIsNoSuchForm) {
  EXPECT_THROW(verify(exchange_by_hand(Collective::all_to_all, 2, false), true), Error);
}

TEST(Verifier, RefusesLanesThatShareMemory) {
  std::vector<Plan> plans{make_plan({Collective::all_gather, Algorithm::ring, 0, 1, 4})};
  EXPECT_FALSE(verify(plans, false));
  plans[0].lanes.push_back(plans[0].lanes[0]);
  EXPECT_THAT(verify(plans, false).value_or(""), testing::HasSubstr("Lanes 0 and 1"));
}

// With buffering, sending before receiving would work; a plan must not rely on it.
TEST(Verifier, RefusesAPlanThatNeedsBuffering) {
  std::vector<Plan> plans;
  for (int rank = 0; rank < 2; ++rank) {
    Plan plan = make_plan({Collective::all_gather, Algorithm::ring, rank, 2, 1});
    Lane& lane = plan.lanes[0];
    ASSERT_EQ(lane.steps.size(), 3U);  // copy | send, recv
    lane.round_ends = {1, 2, 3};
    plans.push_back(plan);
  }
  EXPECT_THAT(verify(plans, false).value_or(""), testing::HasSubstr("waits forever"));
}

}  // namespace
}  // namespace stretto
