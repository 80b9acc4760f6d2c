// The all-reduce with servers: how much each rank sends, and that servers add up shares only in server_set.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <climits>
#include <cmath>

#include "stretto/planning/proof.hpp"
#include "stretto/stretto.hpp"
#include "support/error.hpp"

namespace stretto {
namespace {

using testing::HasSubstr;

PlanRequest request_of(int ranks, int servers, int rank, std::int64_t count, int pieces = 4) {
  PlanRequest request{Collective::all_reduce, Algorithm::server_set, rank, ranks, count};
  request.method.pieces = pieces;
  request.servers = servers;
  return request;
}

std::vector<Plan> plans_of(int ranks, int servers, std::int64_t count, int pieces = 4) {
  std::vector<Plan> plans;
  for (int rank = 0; rank < ranks + servers; ++rank)
    plans.push_back(make_plan(request_of(ranks, servers, rank, count, pieces)));
  return plans;
}

// Jiang et al. 2020: the time of the busiest link over that in which a link carries the vector.
struct Balanced {
  int ranks, servers;
  double time;
};

TEST(ServerSet, KeepsEveryLinkBusyEquallyLong) {
  constexpr std::int64_t n = 27'720'000;  // divides by all shares
  for (const auto& [ranks, servers, time] : {Balanced{3, 1, 1.2},
                                             {3, 2, 12.0 / 11},
                                             {3, 3, 1},
                                             {4, 1, 4.0 / 3},
                                             {4, 2, 1.2},
                                             {4, 3, 12.0 / 11},
                                             {4, 4, 1},
                                             {8, 4, 14.0 / 11},
                                             {8, 8, 1}}) {
    for (const Plan& plan : plans_of(ranks, servers, n)) {
      EXPECT_NEAR(static_cast<double>(plan.elements_sent()) / n, time, 1e-5)
          << ranks << " ranks, " << servers << " servers, rank " << plan.request.rank;
    }
    EXPECT_LT(time, 2.0 * (ranks - 1) / ranks) << "what a ring takes";
  }
}

TEST(ServerSet, CannotHelpTwoRanksAndSparesTheServersThatAreMoreThanRanks) {
  for (const int servers : {1, 2}) EXPECT_EQ(plans_of(2, servers, 1200).front().elements_sent(), 1200) << "as a ring";
  const std::vector<Plan> plans = plans_of(3, 6, 1200);
  EXPECT_EQ(plans.front().elements_sent(), 1200);
  EXPECT_EQ(plans.back().elements_sent(), 600) << "each of 6 servers has a 6th";
  EXPECT_EQ(plans_of(4, 0, 1200).front().elements_sent(),
            make_plan({Collective::all_reduce, Algorithm::two_shot, 0, 4, 1200}).elements_sent());
}

TEST(ServerSet, IsProvedWithAControl) {
  EXPECT_EQ(verify(plans_of(4, 2, 1000), true), std::nullopt);
  std::vector<Plan> plans = plans_of(4, 2, 1000);
  for (Step& step : plans[5].lanes[0].steps) {
    if (step.kind == StepKind::reduce) step.source.count -= step.destination.count;
  }
  EXPECT_THAT(verify(plans, true).value_or(""), HasSubstr("contribution")) << "a server forgets rank 3";
  plans = plans_of(4, 2, 1000);
  for (Plan& plan : plans) plan.request.servers = 1;
  EXPECT_NE(verify(plans, true), std::nullopt) << "a rank more";
}

TEST(ServerSet, ServersDoNothingInOtherAlgorithms) {
  for (const Algorithm algorithm : {Algorithm::ring, Algorithm::recursive_doubling, Algorithm::two_shot}) {
    PlanRequest request = request_of(4, 2, 5, 1000, 1);
    request.method = algorithm;
    EXPECT_EQ(make_plan(request).rounds(), 0);
    request.rank = 1;
    PlanRequest alone = request;
    alone.servers = 0;
    EXPECT_EQ(make_plan(request).lanes, make_plan(alone).lanes);
  }
}

TEST(ServerSet, PlansWithServersReadBackFromText) {
  const Plan plan = make_plan(request_of(3, 2, 4, 100));
  EXPECT_THAT(to_text(plan), HasSubstr("servers 2\n"));
  EXPECT_EQ(plan_from_text(to_text(plan)), plan);
}

TEST(ServerSet, RefusesWhatHasNoServers) {
  const auto sentence = [](PlanRequest request) { return sentence_of([&] { make_plan(request); }); };
  PlanRequest request = request_of(4, 2, 0, 100, 1);
  request.collective = Collective::broadcast;
  request.method = Algorithm::binomial;
  EXPECT_THAT(sentence(request), HasSubstr("broadcast with 2 servers; all_reduce takes 0 or more, others none."));
  request = request_of(4, 2, 0, 100, 1);
  request.method = Algorithm::staged;
  EXPECT_THAT(sentence(request), HasSubstr("cannot be done by staged, in which all ranks have vectors; choose server_set."));
  request = request_of(4, 2, 0, 100, 1);
  request.quantized = request.quantized_result = QuantizedFormat::int8;
  EXPECT_THAT(sentence(request), HasSubstr("all_reduce with 2 servers cannot be quantized; leave out the format int8"));
  request = request_of(4, 2, 6, 100, 1);
  EXPECT_THAT(sentence(request), HasSubstr("Rank 6 is outside a group of 6."));
  request = request_of(4, 2, 0, 100, 1);
  request.method = Algorithm::two_level;
  request.ranks_per_node = 2;
  request.method.inside = Algorithm::ring;
  request.method.between = Algorithm::server_set;
  EXPECT_THAT(sentence(request), HasSubstr("has server_set as a part"));
  request.rank = 5;
  EXPECT_THAT(sentence(request), HasSubstr("has server_set as a part")) << "also on servers";
  request = request_of(INT_MAX, 1, 0, 1, 1);
  EXPECT_THAT(sentence(request), HasSubstr("over 2147483647 ranks and 1 servers is impossible"));
}

}  // namespace
}  // namespace stretto
