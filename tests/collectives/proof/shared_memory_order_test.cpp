// Plans of ranks that share memory: the verifier refuses those whose signals and waits do not order who touches what.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "collectives/plan/plan_builder.hpp"
#include "every_algorithm.hpp"
#include "plans_by_hand.hpp"
#include "stretto/planning/proof.hpp"

namespace stretto {
namespace {

using Tell = void (*)(PlanBuilder&, const PlanRequest&);

void for_others(const PlanRequest& request, const std::function<void(int)>& visit) {
  for (int peer = 0; peer < request.size; ++peer) {
    if (peer != request.rank) visit(peer);
  }
}

// Everybody sums everything for itself.
std::vector<Plan> sums_of_all(int size, Tell before, Tell between, Tell after) {
  const ProofCase which{{.collective = Collective::all_reduce, .size = size, .count = 2}};
  return by_hand(which, [&](PlanBuilder& plan, const PlanRequest& request) {
    before(plan, request);
    plan.next_round();
    between(plan, request);
    plan.next_round();
    plan.read_reduce(input(0, 2), request.rank, output(0, 2));
    plan.next_round();
    after(plan, request);
  });
}
void nothing(PlanBuilder&, const PlanRequest&) {}
void tell(PlanBuilder& plan, const PlanRequest&) { plan.signal(); }
void wait_for_all(PlanBuilder& plan, const PlanRequest& request) {
  for_others(request, [&](int peer) { plan.wait(peer); });
}
void tell_and_wait(PlanBuilder& plan, const PlanRequest& request) {
  plan.signal();
  plan.next_round();
  wait_for_all(plan, request);
}

std::string refusal(const std::vector<Plan>& plans, bool in_place = false) { return verify(plans, in_place).value_or(""); }

TEST(SharedMemory, IsOrderedBySignalsAndWaits) {
  EXPECT_EQ(refusal(sums_of_all(3, tell, wait_for_all, tell_and_wait)), "");
  // What one rank overwrites others still read.
  EXPECT_THAT(refusal(sums_of_all(3, tell, wait_for_all, tell_and_wait), true), testing::HasSubstr("at the same time"));
}

TEST(SharedMemory, MayNotBeTouchedBeforeItsOwnerHasBegun) {
  EXPECT_THAT(refusal(sums_of_all(2, nothing, nothing, tell_and_wait)),
              testing::HasSubstr("reads element 0 of rank 0's input, which may not have begun"));
  EXPECT_THAT(refusal(sums_of_all(2, tell, nothing, tell_and_wait)), testing::HasSubstr("may not have begun"));
}

TEST(SharedMemory, MayNotBeTouchedWhenItsOwnerMayBeDone) {
  EXPECT_THAT(refusal(sums_of_all(2, tell, wait_for_all, nothing)),
              testing::HasSubstr("Rank 0 may be done while rank 1 still reads element 0 of rank 0's input"));
  EXPECT_THAT(refusal(sums_of_all(2, tell, wait_for_all, tell)), testing::HasSubstr("may be done while"));
  // The scratch of packet and staged is kept; that of others is not.
  std::vector<Plan> plans;
  for (int rank = 0; rank < 3; ++rank) plans.push_back(make_plan({Collective::all_reduce, Algorithm::packet, rank, 3, 4}));
  EXPECT_EQ(refusal(plans), "");
  for (Plan& plan : plans) plan.request.method = Algorithm::staged;
  EXPECT_EQ(refusal(plans), "");
  for (Plan& plan : plans) plan.request.method = Algorithm::pull;
  EXPECT_THAT(refusal(plans),
              testing::HasSubstr("Rank 0 may be done while rank 2 still reads element 0 of rank 0's scratch"));
}

// Knowledge is passed on: who has heard of a rank that has heard of another knows of both.
TEST(SharedMemory, IsOrderedThroughAThirdRank) {
  const ProofCase which{{.collective = Collective::broadcast, .size = 3, .count = 1}};
  const auto through = [&](bool heard) {
    return by_hand(which, [&](PlanBuilder& plan, const PlanRequest& request) {
      plan.signal();  // 0 has begun, and so has everybody else
      plan.next_round();
      if (request.rank == 1) plan.wait(0);
      plan.next_round();
      plan.signal();
      plan.next_round();
      if (request.rank == 2) plan.wait(heard ? 1 : 0);  // of 0, only by 1
      plan.next_round();
      if (request.rank == 0) plan.copy(input(0, 1), output(0, 1));
      if (request.rank != 0) plan.read(0, input(0, 1), output(0, 1));
      plan.next_round();
      plan.signal();
      plan.next_round();
      if (request.rank == 0) wait_for_all(plan, request);
    });
  };
  EXPECT_EQ(refusal(through(true)), "");
  auto unheard = through(true);
  Lane& lane = unheard[1].lanes[0];  // forgets to listen to 0 before it tells 2
  const auto wait =
      std::find_if(lane.steps.begin(), lane.steps.end(), [](const Step& step) { return step.kind == StepKind::wait; });
  for (std::size_t& end : lane.round_ends) end -= end > static_cast<std::size_t>(wait - lane.steps.begin()) ? 1 : 0;
  lane.steps.erase(wait);
  EXPECT_THAT(refusal(unheard), testing::HasSubstr("of rank 0's input, which may not have begun"));
}

TEST(SharedMemory, IsRefusedWhereSignalsDoNotFitTogether) {
  auto plans = sums_of_all(3, tell, wait_for_all, tell_and_wait);
  plans[2].lanes[0].steps.push_back({StepKind::signal, false, -1, {}, {}});
  plans[2].lanes[0].round_ends.push_back(plans[2].lanes[0].steps.size());
  EXPECT_THAT(refusal(plans), testing::HasSubstr("Rank 2 signals 3 times, and rank 0 2 times"));
  plans = sums_of_all(2, tell, wait_for_all, tell_and_wait);
  plans[1].lanes.emplace_back();
  EXPECT_THAT(refusal(plans), testing::HasSubstr("Rank 1 has 2 lanes"));
  plans = sums_of_all(2, tell, wait_for_all, tell_and_wait);
  plans[1].lanes[0].round_ends.erase(plans[1].lanes[0].round_ends.begin());
  EXPECT_THAT(refusal(plans), testing::HasSubstr("Rank 1 signals and waits"));
  plans = sums_of_all(2, tell, wait_for_all, tell_and_wait);
  plans[0].lanes[0].steps[0] = {StepKind::send, false, 1, input(0, 1), {}};
  EXPECT_THAT(refusal(plans), testing::HasSubstr("Rank 0 exchanges messages"));
}

// The last signals left out by all ranks, and the waits behind them.
TEST(SharedMemory, NeedsTheClosingOfEveryPlanThatHasOne) {
  for (const auto& [collective, algorithm] : every_algorithm()) {
    if (!touches_buffers(algorithm)) continue;
    std::vector<Plan> plans;
    for (int rank = 0; rank < 4; ++rank) plans.push_back(make_plan({collective, algorithm, rank, 4, 8, 1}));
    EXPECT_EQ(refusal(plans), "");
    for (Plan& plan : plans) {
      Lane& lane = plan.lanes[0];
      while (lane.steps.back().kind == StepKind::wait) lane.steps.pop_back();
      ASSERT_EQ(lane.steps.back().kind, StepKind::signal);
      lane.steps.pop_back();
      while (!lane.round_ends.empty() && lane.round_ends.back() > lane.steps.size()) lane.round_ends.pop_back();
    }
    EXPECT_THAT(refusal(plans), testing::HasSubstr("may be done while rank")) << name(collective) << name(algorithm);
  }
}

}  // namespace
}  // namespace stretto
