// The choice of a method, its reason, and the errors for wrong rules and tuning files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "stretto/planning/tuning.hpp"
#include "stretto/stretto.hpp"
#include "support/error.hpp"

namespace stretto {
namespace {

using testing::HasSubstr;

constexpr const char* two_routes = R"({"routes": [
 {"route": "shm", "ranks": 4, "ranks_per_core": 1, "alpha_us": 1, "overhead_us": 0, "bandwidth_gbs": 10, "local_gbs": 10,
  "lane_gain": 0, "table": "broadcast:0-1k:direct,1k-inf:chain/16"},
 {"route": "ucx", "ranks": 2, "ranks_per_core": 1, "alpha_us": 20, "overhead_us": 1, "bandwidth_gbs": 1, "local_gbs": 10,
  "lane_gain": 0.5}]})";

PlanRequest request(Collective collective, std::int64_t count, int size = 4) {
  return {collective, Algorithm::automatic, 0, size, count};
}

// Of sums in f32.
Choice choice_of(const PlanRequest& what, const Tuning& tuning, const Circumstances& where = {}, bool may_be_plain = false) {
  return choose(what, DType::f32, ReduceOp::sum, tuning, where, may_be_plain);
}

const Circumstances on_nodes{.several_nodes = true};

Method chosen(const PlanRequest& what, const Tuning& tuning, DType dtype = DType::f32, const Circumstances& where = {}) {
  return choose(what, dtype, ReduceOp::sum, tuning, where).method;
}

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

TEST(Rules, AreReadAgainFromTheirText) {
  const std::string text =
      "all_reduce:0-4096:recursive_doubling;all_reduce:4096-inf:ring*2;broadcast@8:0-inf:chain/16;reduce:0-inf:auto";
  EXPECT_EQ(to_text(rules_from_text(text, "test")), text);
  EXPECT_EQ(to_text(std::vector<Rule>()), "");
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

// ---- Quantized calls

PlanRequest quantized(Collective collective, std::int64_t count, int size, int on_node = 0) {
  PlanRequest what = request(collective, count, size);
  what.ranks_per_node = on_node;
  what.quantized = QuantizedFormat::int4;
  if (collective == Collective::all_reduce) what.quantized_result = QuantizedFormat::int8;
  return what;
}

TEST(ChooseQuantized, TakesWhatQuantizes) {
  const Tuning tuning = Tuning::from_json(two_routes, "test");
  for (const Collective collective : {Collective::all_gather, Collective::reduce_scatter, Collective::all_reduce}) {
    const Choice choice = choose(quantized(collective, 1 << 20, 4), DType::bf16, ReduceOp::sum, tuning, {});
    EXPECT_TRUE(choice.quantized);
    EXPECT_EQ(choice.wire, DType::bf16);
    ASSERT_EQ(choice.candidates.size(), 3U);  // in 1, 4 and 16 pieces
    for (const Candidate& candidate : choice.candidates) {
      EXPECT_TRUE(quantizes(collective, candidate.method.algorithm) && candidate.quantized);
    }
    EXPECT_THAT(choice.reason, HasSubstr(" in int4"));
    EXPECT_THAT(choice.reason, HasSubstr("us by the cost model"));
  }
}

TEST(ChooseQuantized, TwoLevelsInPiecesBetweenNodes) {
  const Tuning tuning = Tuning::from_json(two_routes, "test");
  const Choice choice = choice_of(quantized(Collective::reduce_scatter, 1 << 20, 32, 8), tuning, on_nodes);
  EXPECT_EQ(choice.method.algorithm, Algorithm::two_level);
  EXPECT_GT(choice.method.pieces, 1);
  EXPECT_THAT(choice.reason, HasSubstr(to_string(choice.method) + " in int4, "));
  PlanRequest uneven = quantized(Collective::all_reduce, 1 << 20, 9);
  uneven.node_sizes = {2, 3, 4};
  EXPECT_EQ(chosen(uneven, tuning, DType::f32, on_nodes).algorithm, Algorithm::two_level);
  // For few bytes, the additional rounds of pieces do not pay.
  EXPECT_EQ(chosen(quantized(Collective::reduce_scatter, 1, 32, 8), tuning, DType::f32, on_nodes).pieces, 1);
}

TEST(ChooseQuantized, RulesAreForPlainCalls) {
  Tuning tuning = Tuning::from_json(two_routes, "test");
  tuning.rules = rules_from_text("all_reduce:ring", "STRETTO_ALGO");
  EXPECT_EQ(chosen(quantized(Collective::all_reduce, 1000, 4), tuning).algorithm, Algorithm::two_shot);
}

// Slow quantization pays only where links are even slower.
TEST(ChooseQuantized, OnlyIfFasterGoesByTheCostOfBoth) {
  Tuning tuning = Tuning::from_json(two_routes, "test");
  const PlanRequest what = quantized(Collective::all_gather, 1 << 20, 4);
  const auto choice_at = [&](double ns) {
    tuning.routes[0].cost.quantize = ns * 1e-9;
    return choice_of(what, tuning, {}, true);
  };
  const Choice fast = choice_at(0.01);
  EXPECT_TRUE(fast.quantized);
  EXPECT_GT(fast.candidates.size(), 3U);
  const Choice slow = choice_at(100);
  EXPECT_FALSE(slow.quantized);
  EXPECT_THAT(slow.reason, HasSubstr("not quantized"));
  EXPECT_EQ(slow.candidates.size(), fast.candidates.size());
  // A rule applies if the call is not quantized.
  tuning.rules = rules_from_text("all_gather:ring", "STRETTO_ALGO");
  EXPECT_EQ(to_string(choice_at(100).method), "ring");
  EXPECT_TRUE(choice_at(0.01).quantized);
}

TEST(ChooseQuantized, TheCallersMethod) {
  const Tuning tuning = Tuning::from_json(two_routes, "test");
  PlanRequest what = quantized(Collective::all_reduce, 1 << 20, 4);
  const auto choice = [&](bool may_be_plain) { return choice_of(what, tuning, {}, may_be_plain); };
  what.method = method_from_text("two_shot/4");
  EXPECT_EQ(choice(false).reason, "two_shot/4 in int4, the sum in int8, by the caller");
  EXPECT_TRUE(choice(true).quantized);  // only a quantized two_shot has pieces
  what.method = Algorithm::ring;
  EXPECT_THAT(sentence_of([&] { choice(false); }), HasSubstr("A quantized all_reduce cannot be done by ring"));
  EXPECT_FALSE(choice(true).quantized);
  EXPECT_EQ(choice(true).method, Method(Algorithm::ring));
  what.method = Algorithm::automatic;
  what.collective = Collective::broadcast;
  what.quantized_result = QuantizedFormat::none;
  EXPECT_THAT(sentence_of([&] { choice(false); }), HasSubstr("broadcast cannot be quantized"));
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

TEST(Rules, SayWhatIsWrongWithThem) {
  const auto sentence = [](const char* text) { return sentence_of([&] { rules_from_text(text, "STRETTO_ALGO"); }); };
  EXPECT_THAT(sentence("ring"), HasSubstr("'ring' in STRETTO_ALGO is no rule"));
  EXPECT_THAT(sentence("all_reduc:ring"), HasSubstr("'all_reduc' is no collective"));
  EXPECT_THAT(sentence("all_reduce:rings"), HasSubstr("'rings' is no algorithm"));
  EXPECT_THAT(sentence("all_reduce:4k:ring"), HasSubstr("'4k' in STRETTO_ALGO is no range"));
  EXPECT_THAT(sentence("all_reduce:8k-4k:ring"), HasSubstr("'8k-4k' in STRETTO_ALGO is empty"));
  EXPECT_THAT(sentence("all_reduce:0-4q:ring"), HasSubstr("'4q'"));
  EXPECT_THAT(sentence("all_reduce@x:ring"), HasSubstr("'x' in STRETTO_ALGO is no number of ranks"));
  EXPECT_THAT(sentence("all_reduce@0:ring"), HasSubstr("'@0' in STRETTO_ALGO"));
  EXPECT_THAT(sentence("all_reduce:"), HasSubstr("'all_reduce:' in STRETTO_ALGO ends without a method"));
  EXPECT_THAT(sentence("all_reduce:ring,;broadcast:chain"), HasSubstr("'all_reduce:ring,' in STRETTO_ALGO ends without"));
  EXPECT_THAT(sentence("all_reduce:0-4k:"), HasSubstr("ends without a method"));
  EXPECT_THAT(sentence("broadcast:ring"), HasSubstr("'ring' for broadcast, which cannot be done that way"));
  EXPECT_THAT(sentence("all_reduce:ring*9"), HasSubstr("9"));
  EXPECT_THAT(sentence("all_reduce:one_shot/4"), HasSubstr("one_shot"));
  EXPECT_THAT(sentence("all_reduce:two_shot/4"), HasSubstr("'two_shot/4' for all_reduce, which only what is quantized"));
  EXPECT_THAT(sentence("all_reduce:two_level/4"), HasSubstr("rules are of plain calls"));
  EXPECT_TRUE(rules_from_text("", "STRETTO_ALGO").empty());
}

TEST(TuningFile, SaysWhatIsWrongWithIt) {
  const auto sentence = [](const std::string& text) { return sentence_of([&] { Tuning::from_json(text, "a.json"); }); };
  EXPECT_THAT(sentence("{"), HasSubstr("a.json cannot be read as a tuning file"));
  EXPECT_THAT(sentence("{}"), HasSubstr("a.json"));
  EXPECT_THAT(sentence(R"({"routes": []})"), HasSubstr("no routes"));
  std::string zero = two_routes;
  zero.replace(zero.find("\"bandwidth_gbs\": 10"), 19, "\"bandwidth_gbs\": 0");
  EXPECT_THAT(sentence(zero), HasSubstr("bandwidth_gbs = 0"));
  EXPECT_THAT(sentence(R"({"route": [], "routes": []})"), HasSubstr("a.json has the key 'route'"));
  std::string misspelt = two_routes;
  misspelt.replace(misspelt.find("\"table\""), 7, "\"tables\"");
  EXPECT_THAT(sentence(misspelt), HasSubstr("A route in a.json has the key 'tables'"));
  std::string with_machine = two_routes;
  with_machine.replace(0, 1, R"({"machine": "any", "table": "broadcast:chain", )");
  EXPECT_EQ(sentence(with_machine), "");
  std::string symmetric = two_routes;
  symmetric.replace(symmetric.find("\"table\""), 7, R"("symmetric_table": "reduce:push", "table")");
  const RouteCost both = Tuning::from_json(symmetric, "a.json").routes[0];
  ASSERT_EQ(both.symmetric_rules.size(), 1U);
  EXPECT_EQ(both.symmetric_rules[0].method, Method(Algorithm::push));
  EXPECT_EQ(both.rules.size(), 2U);
  symmetric.replace(symmetric.find("reduce:push"), 11, "gather:push");
  EXPECT_THAT(sentence(symmetric), HasSubstr("'push' for gather, which cannot be done that way"));
  const Tuning tuning = Tuning::from_json(two_routes, "a.json");
  EXPECT_DOUBLE_EQ(tuning.routes[0].cost.quantize, 0.4e-9);  // 4 bytes at 10 GB/s
  std::string quantizing = two_routes;
  quantizing.replace(quantizing.find("\"lane_gain\""), 11, "\"quantize_ns\": 0.25, \"lane_gain\"");
  EXPECT_DOUBLE_EQ(Tuning::from_json(quantizing, "a.json").routes[0].cost.quantize, 0.25e-9);
  quantizing.replace(quantizing.find("0.25"), 4, "-1.0");
  EXPECT_THAT(sentence(quantizing), HasSubstr("quantize_ns = -1"));
  for (const char* ranks : {"0", "2.5", "1e87", "4294967298", "\"2\""}) {
    std::string odd = two_routes;
    odd.replace(odd.find("\"ranks\": 4"), 10, std::string("\"ranks\": ") + ranks);
    EXPECT_THAT(sentence(odd), HasSubstr("it must be a whole number from 1 to 1048576")) << ranks;
  }
  EXPECT_EQ(tuning.nearest("ucx", 8, 1).ranks, 2);
  EXPECT_THAT(sentence_of([&] { tuning.nearest("nccl", 2, 1); }), HasSubstr("'nccl'"));
}

TEST(Method, IsReadAsItIsWritten) {
  for (const char* text : {"ring", "ring*4", "chain/16", "two_level(ring+two_shot)", "auto"}) {
    EXPECT_EQ(to_string(method_from_text(text)), text);
  }
  for (const char* text : {"ring*", "ring*0", "ring/2", "chain/x", "two_level", "ring(a+b)", "two_level(ring)", ""}) {
    EXPECT_NE(sentence_of([&] { make_plan({Collective::all_reduce, method_from_text(text), 0, 2, 4}); }), "") << text;
  }
}

}  // namespace
}  // namespace stretto
