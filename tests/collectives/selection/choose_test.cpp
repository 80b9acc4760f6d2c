// The choice of a method, its reason, and the errors for wrong requests.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "collectives/selection/requests.hpp"
#include "stretto/stretto.hpp"
#include "support/error.hpp"

namespace stretto {
namespace {

using testing::HasSubstr;

TEST(Choose, TakesTheLeastOfTheCostModel) {
  Tuning tuning = Tuning::from_json(two_routes, "test");
  const Choice choice = choice_of(request(Collective::all_reduce, 1 << 20), tuning);
  ASSERT_GT(choice.candidates.size(), 5U);
  EXPECT_EQ(choice.method, choice.candidates[0].method);
  for (std::size_t i = 1; i < choice.candidates.size(); ++i) {
    EXPECT_LE(choice.candidates[i - 1].seconds, choice.candidates[i].seconds);
  }
  EXPECT_THAT(choice.reason, HasSubstr("cost model"));
  // The number of rounds decides where rounds are expensive, the number of bytes where there are many.
  tuning.routes[0].cost = {1e-3, 0, 1e-12, 1e-12};
  EXPECT_EQ(chosen(request(Collective::all_reduce, 4), tuning), Method(Algorithm::one_shot));
  tuning.routes[0].cost = {1e-12, 1e-12, 1e-9, 1e-9};
  EXPECT_NE(chosen(request(Collective::all_reduce, 1 << 20), tuning), Method(Algorithm::one_shot));
}

TEST(Choose, LanesWhereTheyGain) {
  Tuning tuning = Tuning::from_json(two_routes, "test");
  const Circumstances between{.route_inside = "ucx"};
  tuning.rules = rules_from_text("reduce_scatter:auto", "test");
  const Choice choice = choice_of(request(Collective::reduce_scatter, 1 << 22), tuning, between);
  EXPECT_EQ(choice.method.algorithm, Algorithm::ring);
  EXPECT_EQ(choice.method.lanes, 4);
}

TEST(Choose, TwoLevelsWhereOneIsSlow) {
  const Tuning tuning = Tuning::from_json(two_routes, "test");
  PlanRequest what = request(Collective::all_reduce, 1 << 20, 32);
  what.ranks_per_node = 8;
  EXPECT_EQ(chosen(what, tuning, DType::f32, on_nodes).algorithm, Algorithm::two_level);
  EXPECT_NE(chosen(what, tuning).algorithm, Algorithm::two_level);
}

// Blocks of different sizes cannot go by way of a node's other ranks, which do not know them.
TEST(Choose, UnevenExchangesHaveOneLevel) {
  const Tuning tuning = Tuning::from_json(two_routes, "test");
  PlanRequest what = request(Collective::all_to_all, 3, 8);
  what.ranks_per_node = 2;
  const auto levels = [&] {
    const std::vector<Candidate> candidates = choice_of(what, tuning, on_nodes).candidates;
    return std::ranges::count_if(candidates, [](const Candidate& one) { return needs_nodes(one.method.algorithm); });
  };
  EXPECT_GT(levels(), 0) << "the control: even blocks";
  what.count = 0;
  what.counts = what.receive_counts = {1, 2, 3, 4, 4, 3, 2, 1};
  EXPECT_EQ(levels(), 0);
}

// The network decides: the model expects lanes and pieces to differ by less than it knows.
TEST(Choose, AmongEqualMethodsInLevelsTheOneThatToleratesDelays) {
  Tuning tuning = Tuning::from_json(two_routes, "test");
  for (RouteCost& route : tuning.routes) {
    if (route.route == "ucx") route.cost = {.alpha = 40e-6, .overhead = 1e-6, .beta = 1 / 0.119e9};
  }
  PlanRequest what = request(Collective::all_reduce, 2 << 20, 8);
  what.ranks_per_node = 2;
  const Choice choice = choice_of(what, tuning, on_nodes);
  EXPECT_EQ(std::pair(choice.method.lanes, choice.method.pieces), std::pair(4, 16)) << choice.reason;
  EXPECT_NE(choice.method, choice.candidates.front().method);
}

TEST(Choose, TheCallerThenRulesThenMeasurementsThenTheModel) {
  Tuning tuning = Tuning::from_json(two_routes, "test");
  PlanRequest what = request(Collective::broadcast, 1000);  // 4000 bytes
  EXPECT_EQ(to_string(chosen(what, tuning)), "chain/16");   // measured
  const Circumstances crowd{.ranks_per_core = 4};
  EXPECT_THAT(choice_of(what, tuning, crowd).reason, HasSubstr("cost model"));
  EXPECT_THAT(choice_of(request(Collective::broadcast, 1000, 5), tuning).reason, HasSubstr("cost model"));
  tuning.rules = rules_from_text("broadcast@5:direct;broadcast:0-1k:direct,2k-8k:knomial", "STRETTO_ALGO");
  EXPECT_EQ(chosen(what, tuning), Method(Algorithm::knomial));
  EXPECT_EQ(to_string(chosen(request(Collective::broadcast, 10000), tuning)), "chain/16");  // no rule matches
  what.method = Algorithm::binomial;
  const Choice caller = choice_of(what, tuning);
  EXPECT_EQ(caller.method, Method(Algorithm::binomial));
  EXPECT_THAT(caller.reason, HasSubstr("caller"));
  tuning.rules = rules_from_text("broadcast:auto", "STRETTO_ALGO");
  what.method = Algorithm::automatic;
  EXPECT_EQ(to_string(chosen(what, tuning)), "chain/16");
}

Circumstances on_one_host(bool symmetric) { return {.shares_memory = true, .symmetric = symmetric}; }

TEST(Choose, EachKindOfMemoryHasItsMeasurements) {
  Tuning tuning = Tuning::from_json(two_routes, "test");
  tuning.routes[0].symmetric_rules = rules_from_text("broadcast:knomial", "measured");
  const PlanRequest what = request(Collective::broadcast, 1000);
  EXPECT_EQ(chosen(what, tuning, DType::f32, on_one_host(true)), Method(Algorithm::knomial));
  EXPECT_EQ(to_string(chosen(what, tuning, DType::f32, on_one_host(false))), "chain/16");
  // The table for one kind of memory does not count for the other.
  tuning.routes[0].symmetric_rules.clear();
  EXPECT_THAT(choice_of(what, tuning, on_one_host(true)).reason, HasSubstr("cost model"));
}

TEST(Choose, MeasuredMethodsThatCannotReachTheBuffersAreIgnored) {
  Tuning tuning = Tuning::from_json(two_routes, "test");
  const PlanRequest what = request(Collective::all_reduce, 1 << 20);
  for (const char* rule : {"all_reduce:push", "all_reduce:pull"}) {
    tuning.routes[0].rules = tuning.routes[0].symmetric_rules = rules_from_text(rule, "measured");
    const Method method = tuning.routes[0].rules.front().method;
    EXPECT_EQ(chosen(what, tuning, DType::f32, on_one_host(true)), method);
    const Choice ordinary = choice_of(what, tuning, on_one_host(false));
    EXPECT_NE(ordinary.method, method);
    EXPECT_THAT(ordinary.reason, HasSubstr("cost model"));
    Circumstances open = on_one_host(false);
    open.reads_memory = true;  // the kernel lets ranks read each other's memory, but not write it
    EXPECT_EQ(chosen(what, tuning, DType::f32, open) == method, method.algorithm == Algorithm::pull);
    EXPECT_NE(chosen(what, tuning), method) << "without shared memory";
  }
}

TEST(Choose, PacketsOverTheirSizeAreLeftToTheModel) {
  Tuning tuning = Tuning::from_json(two_routes, "test");
  tuning.routes[0].rules = rules_from_text("all_reduce:packet;all_gather:packet", "measured");
  const Circumstances where = on_one_host(false);
  constexpr std::int64_t most = most_packet_bytes / sizeof(float);
  for (const Collective collective : {Collective::all_reduce, Collective::all_gather}) {  // a gather's packet is one share
    EXPECT_EQ(chosen(request(collective, most), tuning, DType::f32, where), Method(Algorithm::packet)) << name(collective);
    const Choice larger = choice_of(request(collective, most + 1), tuning, where);
    EXPECT_NE(larger.method, Method(Algorithm::packet)) << name(collective);
    EXPECT_THAT(larger.reason, HasSubstr("cost model"));
  }
}

TEST(Choose, NarrowSumsTravelWideUnlessTheyAreRoundedOnce) {
  Tuning tuning = Tuning::from_json(two_routes, "test");
  PlanRequest what = request(Collective::all_reduce, 1000);
  const auto wire = [&](Algorithm algorithm, ReduceOp op) {
    what.method = algorithm;
    return choose(what, DType::bf16, op, tuning, {}).wire;
  };
  EXPECT_EQ(wire(Algorithm::ring, ReduceOp::sum), DType::f32);
  EXPECT_EQ(wire(Algorithm::two_shot, ReduceOp::avg), DType::bf16);
  EXPECT_EQ(wire(Algorithm::two_shot, ReduceOp::premul_sum), DType::f32);
  EXPECT_EQ(wire(Algorithm::ring, ReduceOp::max), DType::bf16);
  // A measurement with f32 does not count for bf16, which would have to travel at twice its size.
  tuning.routes[0].rules = rules_from_text("all_reduce:ring", "measured");
  EXPECT_EQ(chosen(request(Collective::all_reduce, 1 << 20), tuning), Method(Algorithm::ring));
  EXPECT_NE(chosen(request(Collective::all_reduce, 1 << 20), tuning, DType::bf16), Method(Algorithm::ring));
}

TEST(Choose, OneOrderOfSummationOnDemand) {
  Tuning tuning = Tuning::from_json(two_routes, "test");
  tuning.deterministic = true;
  for (const std::int64_t count : {1, 1000, 1 << 22}) {
    for (const Collective collective : {Collective::all_reduce, Collective::reduce_scatter, Collective::reduce}) {
      EXPECT_TRUE(is_deterministic(chosen(request(collective, count), tuning).algorithm)) << name(collective);
    }
    EXPECT_EQ(chosen(request(Collective::all_reduce, count), tuning, DType::i32).algorithm, [&] {
      Tuning free = tuning;
      free.deterministic = false;
      return chosen(request(Collective::all_reduce, count), free, DType::i32).algorithm;
    }());  // integers are exact in any order
  }
  tuning.rules = rules_from_text("all_reduce:ring", "STRETTO_ALGO");
  EXPECT_THAT(sentence_of([&] { chosen(request(Collective::all_reduce, 8), tuning); }), HasSubstr("order of summation"));
}

// Between unequal nodes, blocks go directly to their owners; the choice considers pieces there, too.
TEST(Choose, LevelsInPiecesOverNodesThatDiffer) {
  Tuning tuning = Tuning::from_json(two_routes, "test");
  for (RouteCost& route : tuning.routes) {
    if (route.route == "ucx") route.cost.beta = 1 / 0.125e9;
  }
  PlanRequest what = request(Collective::reduce_scatter, 1 << 20, 4);
  what.node_sizes = {3, 1};
  const Choice choice = choice_of(what, tuning, on_nodes);
  const auto in_pieces = [](const Candidate& one) { return one.method.pieces > 1; };
  EXPECT_TRUE(std::any_of(choice.candidates.begin(), choice.candidates.end(), in_pieces));
}

// Ranks of a node that send at the same time share its port. In a ring only one of them sends, and has the link to itself.
TEST(Cost, RanksOfANodeShareItsPort) {
  const LinkCost inside{1e-6, 0, 1e-10, 0, 0, 0};
  const LinkCost between{1e-6, 0, 1e-8, 0, 0, 0};
  const auto seconds_by = [&](Algorithm algorithm, int ranks_per_node, int ports) {
    PlanRequest what = request(Collective::all_gather, 1 << 20, 8);
    what.method = algorithm;
    what.ranks_per_node = ranks_per_node;
    return seconds(what, inside, between, 4, ports);
  };
  EXPECT_NEAR(seconds_by(Algorithm::direct, 4, 1) / seconds_by(Algorithm::direct, 1, 1), 4 * 4 / 7.0, 1e-3);
  EXPECT_EQ(seconds_by(Algorithm::direct, 4, 8), seconds_by(Algorithm::direct, 1, 8));
  EXPECT_EQ(seconds_by(Algorithm::ring, 4, 1), seconds_by(Algorithm::ring, 1, 1));
}

// A wrong request, and a part of its error message.
struct WrongRequest {
  PlanRequest request;
  const char* said;
};

std::vector<WrongRequest> wrong_requests() {
  constexpr std::int64_t many = std::int64_t{1} << 55;
  std::vector<WrongRequest> wrong{
      {request(Collective::broadcast, 4, 3), "broadcast with root or peer 3 in a group of 3"},
      {request(Collective::all_reduce, -4, 3), "all_reduce of -4 elements"},
      {request(Collective::all_gather, 0, 3), "all_gather got 2 counts and the count 0 in a group of 3"},
      {request(Collective::all_gather, 0, 3), "all_gather of -1 elements"},
      {request(Collective::all_gather, 0, 3), "all_gather over 3 ranks got counts of more than 72057594037927936"},
      {request(Collective::all_gather, INT64_MAX / 2, 3), "all_gather of 4611686018427387903 elements over 3 ranks"},
      {request(Collective::reduce_scatter, many, 3), "reduce_scatter of 36028797018963968 elements over 3 ranks"},
      {request(Collective::broadcast, 2 * many + 1, 3), "broadcast of 72057594037927937 elements"},
  };
  wrong[0].request.root = 3;
  wrong[2].request.counts = {1, 1};
  wrong[3].request.counts = {1, -1, 1};
  wrong[4].request.counts = {INT64_MAX, INT64_MAX, 2};
  return wrong;
}

TEST(Choose, SaysWhatIsWrongWithARequest) {
  const Tuning tuning = Tuning::from_json(two_routes, "test");
  for (auto& [wrong, said] : wrong_requests()) {
    for (const Algorithm method : {Algorithm::automatic, Algorithm::direct}) {
      PlanRequest what = wrong;
      what.method = method;
      expect_refusal([&] { choice_of(what, tuning); }, said);
    }
  }
  EXPECT_NO_THROW(chosen(request(Collective::broadcast, std::int64_t{1} << 56, 3), tuning));
}

TEST(Choose, CommunicatorsSayItAtTheCall) {
  run_threads(3, [](const Communicator& world) {
    float nothing = 0;
    for (const auto& [wrong, said] : wrong_requests()) {
      Call call{.collective = wrong.collective, .input = &nothing, .output = &nothing, .count = wrong.count};
      call.root = wrong.root;
      call.counts = wrong.counts;
      // Another check refuses a count that is too large by itself before the call is planned.
      const bool is_planned = wrong.count <= std::int64_t{1} << 56;
      expect_refusal([&] { world.start(call, Stream::inline_()).wait(); }, is_planned ? said : "");
    }
  });
}

TEST(Choose, ARuleThatDecidesNeedsNoRoute) {
  Tuning tuning = Tuning::from_json(two_routes, "test");
  const Circumstances elsewhere{.route_inside = "nccl"};
  EXPECT_THAT(sentence_of([&] { chosen(request(Collective::broadcast, 4), tuning, DType::f32, elsewhere); }),
              HasSubstr("'nccl'"));
  tuning.rules = rules_from_text("broadcast:chain", "test");
  EXPECT_EQ(chosen(request(Collective::broadcast, 4), tuning, DType::f32, elsewhere), Method(Algorithm::chain));
}

TEST(Choose, RulesWithARangeDoNotBindWhatHasNoKnownSize) {
  Tuning tuning = Tuning::from_json(two_routes, "test");
  PlanRequest uneven = request(Collective::all_to_all, 0);
  uneven.counts = uneven.receive_counts = {1, 2, 3, 4};
  tuning.rules = rules_from_text("all_to_all:0-1G:pairwise", "STRETTO_ALGO");
  EXPECT_THAT(choice_of(uneven, tuning).reason, HasSubstr("cost model"));
  tuning.rules = rules_from_text("all_to_all:pairwise", "STRETTO_ALGO");
  EXPECT_EQ(chosen(uneven, tuning), Method(Algorithm::pairwise));
}

}  // namespace
}  // namespace stretto
