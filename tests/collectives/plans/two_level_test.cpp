// Plans of two and three levels: on nodes that are alike and others, in pieces and lanes; what they cost, and what of it
// crosses the nodes' boundaries.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "collectives/plans/cost_of_plans.hpp"
#include "stretto/error.hpp"
#include "stretto/planning/proof.hpp"
#include "stretto/planning/simulate.hpp"
#include "support/error.hpp"

namespace stretto {
namespace {

using testing::HasSubstr;

Method two_level_of(Algorithm inside, Algorithm between, int lanes = 1, int pieces = 1) {
  Method method(Algorithm::two_level);
  method.inside = inside;
  method.between = between;
  method.lanes = lanes;
  method.pieces = pieces;
  return method;
}

std::vector<Plan> plans_of(PlanRequest request) {
  std::vector<Plan> plans;
  for (request.rank = 0; request.rank < request.size; ++request.rank) plans.push_back(make_plan(request));
  return plans;
}

std::vector<int> node_of_each_rank(const PlanRequest& request) {
  std::vector<int> nodes;
  for (std::size_t node = 0; node < request.node_sizes.size(); ++node) {
    nodes.insert(nodes.end(), static_cast<std::size_t>(request.node_sizes[node]), static_cast<int>(node));
  }
  for (int rank = 0; request.ranks_per_node > 0 && rank < request.size; ++rank) {
    nodes.push_back(rank / request.ranks_per_node);
  }
  return nodes;
}

std::string text_of(const PlanRequest& request) {
  std::string text = to_string(ProofCase{request, false}) + ", nodes";
  for (const int ranks : request.node_sizes) text += " " + std::to_string(ranks);
  return text + ", " + std::to_string(request.nodes_per_pod) + " a pod";
}

void expect_right(const PlanRequest& request) {
  const std::vector<Plan> plans = plans_of(request);
  ASSERT_EQ(verify(plans, false).value_or(""), "") << text_of(request);
  if (can_be_in_place(request.collective)) {
    ASSERT_EQ(verify(plans, true).value_or(""), "") << text_of(request) << ", in place";
  }
}

const std::vector<Collective> all_with_levels{Collective::all_reduce, Collective::reduce_scatter, Collective::all_gather,
                                              Collective::all_to_all, Collective::broadcast,      Collective::reduce};

std::string refusal_of(const PlanRequest& request) {
  std::string sentence = sentence_of([&] { make_plan(request); });
  if (!sentence.empty()) {
    EXPECT_THROW(cost_of(request), Error);
  }
  return sentence;
}

// Names the part that cannot do what it would have to.
bool is_of_a_part(const std::string& sentence) {
  return sentence.find("as a part") != std::string::npos || sentence.find("straight to their owners") != std::string::npos;
}

class OfLevels : public testing::TestWithParam<Collective> {};
INSTANTIATE_TEST_SUITE_P(All, OfLevels, testing::ValuesIn(all_with_levels),
                         [](const auto& parameter) { return std::string(name(parameter.param)); });

// Node sizes, parts, lanes, pieces, pods, counts and root at random, of 2 to 40 ranks.
TEST_P(OfLevels, AreRightOnAnyNodes) {
  std::mt19937 random(static_cast<unsigned>(GetParam()) + 1);
  const auto below = [&](int end) { return static_cast<int>(random() % static_cast<unsigned>(end)); };
  const auto any_part = [&] { return static_cast<Algorithm>(1 + below(static_cast<int>(Algorithm::two_level) - 1)); };
  const auto part_of = [&](Collective collective) {
    const auto& known = algorithms_for(collective);
    return known[static_cast<std::size_t>(below(static_cast<int>(known.size())))];
  };
  int proved = 0;
  int uneven_proved = 0;
  int pods_proved = 0;
  for (int i = 0; proved < 300 || pods_proved < 20; ++i) {
    ASSERT_LT(i, 100000);
    PlanRequest request{.collective = GetParam()};
    const int nodes = 1 + below(8);
    const bool alike = below(2) == 0;
    const int ranks = 1 + below(5);
    request.size = 0;
    for (int node = 0; node < nodes; ++node) {
      request.node_sizes.push_back(alike ? ranks : 1 + below(5));
      request.size += request.node_sizes.back();
    }
    if (alike && below(2) == 0) {
      request.node_sizes.clear();
      request.ranks_per_node = ranks;
    }
    request.method = two_level_of(any_part(), below(3) == 0 ? Algorithm::direct : part_of(GetParam()));
    request.method.pieces = 1 + below(5);
    request.method.lanes = 1 + below(std::min(request.method.pieces, most_lanes));
    if (below(2) == 0) {
      request.method.algorithm = Algorithm::three_level;
      request.method.above = part_of(GetParam());
      request.nodes_per_pod = 1 + below(nodes);
      if (nodes % request.nodes_per_pod != 0) continue;
    }
    request.count = below(4) == 0 ? below(3) : below(60);
    request.root = has_root(request.collective) ? below(request.size) : 0;
    const bool takes_counts =
        request.collective == Collective::all_gather || request.collective == Collective::reduce_scatter;
    if (takes_counts && below(3) == 0) {
      request.count = 0;
      for (int rank = 0; rank < request.size; ++rank) request.counts.push_back(below(8));
    }
    if (const std::string sentence = refusal_of(request); !sentence.empty()) {
      ASSERT_TRUE(is_of_a_part(sentence)) << text_of(request) << ": " << sentence;
      continue;
    }
    expect_right(request);
    if (HasFatalFailure()) return;
    ++proved;
    const bool differ = !alike && nodes > 1;
    uneven_proved += differ ? 1 : 0;
    pods_proved += request.nodes_per_pod > 1 && request.nodes_per_pod < nodes ? 1 : 0;
  }
  EXPECT_GT(uneven_proved, 30);
}

// The point of levels: of an all-reduce 2 (M-1)/M n leave a node in all, of a reduce-scatter or all-gather half of that, and
// its m ranks share them.
TEST(TwoLevel, SendsFewBytesBetweenNodes) {
  constexpr std::int64_t element_bytes = 4;
  struct Boundary {
    Collective collective;
    std::int64_t count;  // for so many ranks
    std::int64_t phases;
  };
  for (const auto& [ranks, nodes] : {std::pair{4, 3}, std::pair{2, 4}, std::pair{8, 2}}) {
    const int size = ranks * nodes;
    const std::int64_t whole = 35 * size;  // 5 for each rank and weight of the cut
    for (const auto& [collective, count, phases] : {Boundary{Collective::all_reduce, whole, 2},
                                                    {Collective::reduce_scatter, 35, 1},
                                                    {Collective::all_gather, 35, 1},
                                                    {Collective::all_to_all, 35, ranks}}) {
      // Parts that both all-reduce and gather, in one piece and in two lanes.
      const Algorithm by = collective == Collective::all_to_all ? Algorithm::direct : Algorithm::ring;
      for (const Method& method : {two_level_of(by, by), two_level_of(by, by, 2, 4)}) {
        const PlanRequest request{
            .collective = collective, .method = method, .size = size, .count = count, .ranks_per_node = ranks};
        for (const Plan& plan : plans_of(request)) {
          EXPECT_EQ(plan.bytes_between_nodes(element_bytes, node_of_each_rank(request)),
                    phases * (nodes - 1) * whole / nodes / ranks * element_bytes)
              << text_of(request) << ", rank " << plan.request.rank;
        }
      }
    }
  }
}

// However the nodes differ: all of them together send 2 (M-1) n, or half of it.
TEST(TwoLevel, SendsAsFewBetweenNodesThatDiffer) {
  PlanRequest request{.method = two_level_of(Algorithm::direct, Algorithm::direct), .size = 13, .node_sizes = {4, 1, 5, 3}};
  const auto crossing = [&](Collective collective, Algorithm between, std::int64_t count) {
    request.collective = collective;
    request.method.between = between;
    request.count = count;
    std::int64_t sum = 0;
    for (const Plan& plan : plans_of(request)) sum += plan.bytes_between_nodes(1, node_of_each_rank(request));
    return sum;
  };
  EXPECT_EQ(crossing(Collective::all_reduce, Algorithm::ring, 100), 2 * 3 * 100);
  EXPECT_EQ(crossing(Collective::broadcast, Algorithm::chain, 100), 3 * 100);
  EXPECT_EQ(crossing(Collective::reduce, Algorithm::binomial, 100), 3 * 100);
  EXPECT_EQ(crossing(Collective::reduce_scatter, Algorithm::direct, 7), 3 * 7 * 13);
  EXPECT_EQ(crossing(Collective::all_gather, Algorithm::direct, 7), 3 * 7 * 13);
}

// Three levels send between pods what two send between nodes that are as large.
TEST(ThreeLevel, SendsFewBytesBetweenPods) {
  Method method(Algorithm::three_level);
  method.inside = method.between = method.above = Algorithm::ring;
  const PlanRequest request{.method = method, .size = 24, .count = 24 * 5, .ranks_per_node = 2, .nodes_per_pod = 4};
  PlanRequest pods = request;
  pods.ranks_per_node = 8;
  for (const Plan& plan : plans_of(request)) {
    EXPECT_EQ(plan.bytes_between_nodes(1, node_of_each_rank(pods)), 2 * 2 * (24 * 5) / 3 / 8);
    EXPECT_EQ(plan.bytes_between_nodes(1, node_of_each_rank(request)), 2 * (3 * 15 + 2 * 5));
  }
}

// A root's vector leaves its node through all ranks.
TEST(TwoLevel, SharesARootsVectorAmongTheRanksOfItsNode) {
  for (const Collective collective : {Collective::broadcast, Collective::reduce}) {
    PlanRequest request{.collective = collective,
                        .method = two_level_of(Algorithm::direct, Algorithm::binomial),
                        .size = 12,
                        .count = 40,
                        .root = 5,
                        .ranks_per_node = 4};
    const auto most_between = [&] {
      std::int64_t most = 0;
      for (const Plan& plan : plans_of(request))
        most = std::max(most, plan.bytes_between_nodes(1, node_of_each_rank(request)));
      return most;
    };
    const std::int64_t hops = collective == Collective::broadcast ? 2 : 1;  // binomial over 3 nodes
    EXPECT_EQ(most_between(), hops * 10);
    EXPECT_EQ(cost_by_level(request).senders, 4);
    request.method.inside = Algorithm::binomial;  // neither gathers nor scatters
    EXPECT_EQ(most_between(), hops * 40);
    EXPECT_EQ(cost_by_level(request).senders, 1);
  }
}

// The two extremes: all of one node, or a node a rank, or one pod or pods of a node.
TEST(ThreeLevel, CollapsesWhereThereIsNothingBetween) {
  Method three(Algorithm::three_level);
  three.inside = Algorithm::ring;
  three.between = Algorithm::ring;
  three.above = Algorithm::one_shot;
  const auto text = [](PlanRequest request, const Method& method, int nodes_per_pod) {
    request.method = method;
    request.nodes_per_pod = nodes_per_pod;
    std::string steps;
    for (const Plan& plan : plans_of(request)) steps += plan.to_string().substr(plan.to_string().find('\n'));
    return steps;
  };
  const PlanRequest request{.size = 12, .count = 24, .ranks_per_node = 3};
  EXPECT_EQ(text(request, three, 1), text(request, two_level_of(Algorithm::ring, Algorithm::one_shot), 0));
  EXPECT_NE(text(request, three, 2), text(request, two_level_of(Algorithm::ring, Algorithm::one_shot), 0));
  // In one pod, a ring scatters and a ring gathers what a ring between nodes would do in one.
  PlanRequest one_pod = request;
  one_pod.nodes_per_pod = 4;
  one_pod.method = three;
  PlanRequest two_levels = request;
  two_levels.method = two_level_of(Algorithm::ring, Algorithm::ring);
  EXPECT_EQ(cost_of(one_pod).sent, cost_of(two_levels).sent);
  EXPECT_EQ(cost_of(one_pod).rounds, cost_of(two_levels).rounds);
}

void expect_cost(const PlanRequest& request) {
  const Cost formula = cost_of(request);
  const Cost plans = cost_of_plans(plans_of(request));
  EXPECT_EQ(formula.rounds, plans.rounds) << text_of(request);
  EXPECT_EQ(formula.messages, plans.messages) << text_of(request);
  EXPECT_EQ(formula.sent, plans.sent) << text_of(request);
  EXPECT_EQ(formula.work, plans.work) << text_of(request);
}

TEST(TwoLevel, CostsItsParts) {
  const Method method = two_level_of(Algorithm::direct, Algorithm::pairwise);
  for (const Collective collective : {Collective::reduce_scatter, Collective::all_to_all}) {
    for (const int pieces : {1, 5}) {
      PlanRequest request{.collective = collective, .method = method, .size = 12, .count = 5, .ranks_per_node = 4};
      request.method.pieces = pieces;
      expect_cost(request);
    }
  }
  const LevelCost cost = cost_by_level({Collective::reduce_scatter, method, 7, 12, 5, 0, {}, {}, 4});
  EXPECT_EQ(cost.inside.messages, 3);
  EXPECT_EQ(cost.between.messages, 2);
  EXPECT_EQ(cost.between.sent, 2 * 5);
  const LevelCost flat = cost_by_level({Collective::reduce_scatter, Algorithm::pairwise, 7, 12, 5});
  EXPECT_EQ(flat.inside.messages, 11);
  EXPECT_EQ(flat.between.messages, 0);
}

TEST(TwoLevel, SharesThePortsOfItsNode) {
  const LinkCost inside{1, 0, 0, 0};
  const LinkCost between{100, 7, 3, 0};
  PlanRequest request{.collective = Collective::all_gather,
                      .method = two_level_of(Algorithm::direct, Algorithm::direct),
                      .size = 12,
                      .count = 5,
                      .ranks_per_node = 4};
  const LevelCost cost = cost_by_level(request);
  const auto expected = [&](double senders) {
    return cost.inside.rounds * 1 + cost.between.rounds * 100 +
           senders * (cost.between.messages * 7 + 2 * cost.between.sent * 3);
  };
  EXPECT_EQ(seconds(request, inside, between, 2, 1), expected(4));
  EXPECT_EQ(seconds(request, inside, between, 2, 2), expected(2));
  EXPECT_EQ(seconds(request, inside, between, 2, 16), expected(1));
  LinkCost gains = between;
  gains.overhead = 0;
  gains.lane_gain = 1;  // four go as fast as one alone
  EXPECT_EQ(seconds(request, inside, gains, 2, 1), expected(1) - cost.between.messages * 7);
  // A root's vector alone, where it does not go in shares; and what has one level goes by the route between nodes.
  request.collective = Collective::broadcast;
  request.method = two_level_of(Algorithm::binomial, Algorithm::direct);
  const LevelCost rooted = cost_by_level(request);
  EXPECT_EQ(seconds(request, inside, between, 2, 1),
            seconds(rooted.inside, inside, 2) + seconds(rooted.between, between, 2));
  request.method = Algorithm::direct;
  EXPECT_EQ(seconds(request, inside, between, 2, 1), seconds(cost_of(request), between, 2));
}

// Where nodes have a slow port, pieces hide what happens inside them; the formula knows by how much.
TEST(TwoLevel, PiecesOverlapTheLevels) {
  const LinkModel links{{{"node", 4, 4, 0.5, 1, 1}, {"network", 0, 30, 2, 0.125, 1, true}}, 8};
  const LinkCost inside{4e-6, 0.5e-6, 1 / 1e9, 1 / 8e9};
  const LinkCost between{30e-6, 2e-6, 1 / 0.125e9, 1 / 8e9};
  constexpr std::int64_t element_bytes = 4;
  for (const Collective collective : all_with_levels) {
    if (has_root(collective)) continue;
    for (const std::int64_t whole : {std::int64_t{1} << 18, std::int64_t{1} << 22}) {
      const Algorithm by = collective == Collective::all_to_all ? Algorithm::pairwise : Algorithm::ring;
      PlanRequest request{.collective = collective, .size = 16, .ranks_per_node = 4};
      request.count = counts_shares(collective) ? whole / 16 : whole;
      const auto simulated = [&] { return simulate(request, element_bytes, links).seconds; };
      const auto formula = [&] { return seconds(request, inside, between, element_bytes, 1); };
      request.method = two_level_of(by, by);
      const double plain = simulated();
      EXPECT_NEAR(formula(), plain, 0.25 * plain) << text_of(request);
      for (const int pieces : {4, 16}) {
        request.method = two_level_of(by, by, 2, pieces);
        const bool enough = pieces == 4 || whole > 1 << 20;
        EXPECT_LT(simulated(), enough ? plain : 1.1 * plain) << text_of(request);
        EXPECT_NEAR(formula(), simulated(), 0.25 * simulated()) << text_of(request);
      }
    }
  }
}

TEST(Levels, RefuseWhatTheyCannotDoInASentence) {
  PlanRequest request{.method = two_level_of(Algorithm::ring, Algorithm::ring), .size = 6, .count = 8};
  EXPECT_THAT(refusal_of(request), HasSubstr("6 ranks cannot lie on nodes of 0"));
  request.ranks_per_node = 4;
  EXPECT_THAT(refusal_of(request), HasSubstr("6 ranks cannot lie on nodes of 4"));
  request.ranks_per_node = 0;
  request.node_sizes = {4, 1};
  EXPECT_THAT(refusal_of(request), HasSubstr("node_sizes 4, 1 are not of 6 ranks"));
  request.node_sizes = {4, 2};
  EXPECT_EQ(refusal_of(request), "");
  request.method.lanes = 2;
  EXPECT_THAT(refusal_of(request), HasSubstr("needs as many pieces, not 1"));
  request.method = Algorithm::two_level;
  EXPECT_THAT(refusal_of(request), HasSubstr("all_reduce by two_level lacks a part"));
  EXPECT_THAT(refusal_of(request), HasSubstr("write two_level(ring+ring), for example"));
  EXPECT_EQ(refusal_of({.method = method_from_text("two_level(ring+ring)"), .size = 6, .count = 8, .node_sizes = {4, 2}}),
            "");
  request.method = two_level_of(Algorithm::ring, Algorithm::bidirectional_ring);
  EXPECT_THAT(refusal_of(request), HasSubstr("has bidirectional_ring as a part"));
  request.method = two_level_of(Algorithm::ring, Algorithm::ring);
  request.method.above = Algorithm::ring;
  EXPECT_THAT(refusal_of(request), HasSubstr("choose three_level"));
  request.method.algorithm = Algorithm::three_level;
  EXPECT_THAT(refusal_of(request), HasSubstr("2 nodes cannot lie in pods of 0"));
  request.nodes_per_pod = 2;
  EXPECT_EQ(refusal_of(request), "");
  request.collective = Collective::reduce_scatter;
  EXPECT_THAT(refusal_of(request), HasSubstr("choose two_level(ring+direct)"));
  request.method = two_level_of(Algorithm::ring, Algorithm::ring);
  EXPECT_THAT(refusal_of(request), HasSubstr("choose two_level(ring+direct)"));
  EXPECT_THAT(
      refusal_of(
          {Collective::all_to_all, two_level_of(Algorithm::direct, Algorithm::direct), 0, 2, 0, 0, {1, 2}, {1, 2}, 1}),
      HasSubstr("one count for all ranks"));
}

TEST(MethodText, OfLevelsIsReadAsItIsWritten) {
  for (const char* text : {"two_level(ring+two_shot)", "two_level(ring+two_shot)*2/8", "three_level(direct+ring+ring)",
                           "three_level(direct+ring+ring)/3", "ring*4", "chain/16"}) {
    EXPECT_EQ(to_string(method_from_text(text)), text);
  }
  for (const char* text :
       {"two_level(ring)", "two_level(ring+ring+ring)", "three_level(ring+ring)", "two_level*2(ring+ring)",
        "two_level(ring+ring)*2", "two_level(ring+ring)8", "two_level(ring+ring", "ring*", "ring)*2("}) {
    EXPECT_THROW(method_from_text(text), Error) << text;
  }
}

}  // namespace
}  // namespace stretto
