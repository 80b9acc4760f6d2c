// The simulator against the formulas, against itself without its shortcut, and on links that are shared.
#include "stretto/planning/simulate.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "stretto/planning/cost.hpp"
#include "stretto/planning/proof.hpp"
#include "support/error.hpp"

namespace stretto {
namespace {

constexpr std::int64_t element_bytes = 4;

// Powers of two make products exact.
LinkModel flat() { return {{{"flat", 0, 8, 2, 0.25}}, 4}; }
LinkCost flat_cost() { return {8e-6, 2e-6, 1 / 0.25e9, 1 / 4e9}; }
LinkModel two_level(int ports) { return {{{"node", 8, 1, 0.5, 8, ports}, {"network", 0, 8, 2, 0.5}}, 16}; }

struct Case {
  Collective collective;
  Algorithm algorithm;
};

std::vector<Case> every_algorithm() {
  std::vector<Case> cases;
  for (int i = 0; i < static_cast<int>(Collective::send); ++i) {
    const auto collective = static_cast<Collective>(i);
    for (const Algorithm algorithm : algorithms_for(collective)) cases.push_back({collective, algorithm});
  }
  return cases;
}

class EverySimulation : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(All, EverySimulation, testing::ValuesIn(every_algorithm()), [](const auto& parameter) {
  return std::string(name(parameter.param.collective)) + "_" + name(parameter.param.algorithm);
});

// What divides evenly into the pieces of levels, of which the first of each lane is shorter.
std::int64_t cut_into(const Method& method) {
  return method.lanes * (method.lanes + 1L) / 2 + (method.pieces - method.lanes) * std::int64_t{method.lanes};
}

// The repertoire's cases whose shares are all of the same size.
std::vector<PlanRequest> even_requests(const Case& which, int size) {
  std::vector<PlanRequest> requests;
  for (const ProofCase& proof : proof_cases(which.collective, which.algorithm, size)) {
    PlanRequest request = proof.request;
    if (proof.uneven || request.count != 1 || request.root != 0) continue;
    request.count = which.collective == Collective::barrier ? 1 : 12L * (counts_shares(which.collective) ? 1 : size);
    if (request.method.pieces > 12) request.count *= request.method.pieces;  // none of them empty
    if (needs_nodes(request.method.algorithm)) request.count *= cut_into(request.method);
    requests.push_back(request);
  }
  return requests;
}

// How far off a formula may be that says of itself that it is approximate.
double tolerance(const PlanRequest& request) {
  const Method& method = request.method;
  // In many pieces the latencies of one tree delay the other's messages; the all-reduce of 16 ranks suffers most.
  const bool many_pieces = method.pieces > 3;
  if (method.algorithm == Algorithm::double_binary_tree) return many_pieces ? 0.8 : 0.15;
  if (request.collective == Collective::broadcast && method.algorithm == Algorithm::chain &&
      method.pieces > request.size - 2) {
    return many_pieces ? 1e-2 : 1e-3;
  }
  // The copy of a chain's first rank is hidden but in the shortest chains.
  const bool chained = method.inside == Algorithm::chain || method.between == Algorithm::chain;
  return request.collective == Collective::broadcast && chained ? 5e-3 : 1e-9;
}

// From two ranks on: formulas in (p-1)/p leave out the copy that a single rank makes.
TEST_P(EverySimulation, TakesTheTimeOfItsFormula) {
  for (const int size : {2, 3, 4, 5, 6, 7, 8, 12, 16, 31, 32, 48, 64}) {
    for (const PlanRequest& request : even_requests(GetParam(), size)) {
      SCOPED_TRACE(to_string({request}));
      const LinkModel links = flat();
      LinkCost cost = flat_cost();
      const double simulated = simulate(request, element_bytes, links).seconds;
      const double formula = seconds(cost_of(request), cost, element_bytes);
      const Method& method = request.method;
      if (needs_nodes(method.algorithm) && (has_root(request.collective) || !request.node_sizes.empty())) {
        // Ranks do not begin a stage together, and the shares or slices of several follow each other through a tree. Where
        // many then gather directly, they get in each other's way.
        EXPECT_GE(simulated, formula / (method.lanes + 1));
        const bool in_the_way = method.inside == Algorithm::direct && request.ranks_per_node > 8;
        EXPECT_LE(simulated, in_the_way ? HUGE_VAL : 2.5 * formula);
        continue;
      }
      if (uses_servers(method.algorithm)) {
        // A round's messages are of two sizes, and a simulated port takes them one behind the other: among many ranks they
        // get in each other's way.
        EXPECT_GE(simulated, 0.75 * formula);
        EXPECT_LE(simulated, size > 8 ? HUGE_VAL : 3 * formula);
        continue;
      }
      if (method.lanes == 1 && method.algorithm != Algorithm::bidirectional_ring) {
        EXPECT_NEAR(simulated, formula, tolerance(request) * formula);
        continue;
      }
      // Several lanes hide the latency and the work of one behind the bytes of another, which the formula leaves out.
      cost.alpha = cost.gamma = 0;
      EXPECT_LE(simulated, formula * (1 + 1e-9));
      EXPECT_GE(simulated, seconds(cost_of(request), cost, element_bytes) * (1 - 1e-9));
    }
  }
}

TEST_P(EverySimulation, IsTheSameWhenOneUnitStandsForAll) {
  for (const LinkModel& links : {flat(), two_level(1), two_level(3)}) {
    for (const int size : {7, 8, 12, 16, 24, 64}) {
      for (const PlanRequest& request : even_requests(GetParam(), size)) {
        SCOPED_TRACE(to_string({request}));
        const Simulation one = simulate(request, element_bytes, links);
        const Simulation all = simulate(request, element_bytes, links, {.symmetry = false});
        EXPECT_EQ(all.ranks_simulated, ranks_of(request));
        EXPECT_EQ(one.seconds, all.seconds);
        EXPECT_EQ(one.finish, all.finish);
        EXPECT_EQ(one.bytes_sent, all.bytes_sent);
      }
    }
  }
}

// ---- quantized

std::vector<PlanRequest> quantized_requests(int size, int pieces) {
  std::vector<PlanRequest> requests;
  for (const Collective collective : {Collective::all_gather, Collective::reduce_scatter, Collective::all_reduce}) {
    for (const Algorithm algorithm : algorithms_for(collective)) {
      if (!quantizes(collective, algorithm)) continue;
      for (int on_node = 1; on_node <= (needs_nodes(algorithm) ? size : 1); ++on_node) {
        if (size % on_node != 0) continue;
        PlanRequest request{.collective = collective, .method = algorithm, .size = size};
        request.method.pieces = pieces;
        request.count = 1024L * pieces * (collective == Collective::all_reduce ? size : 1);
        request.ranks_per_node = needs_nodes(algorithm) ? on_node : 0;
        request.quantized = QuantizedFormat::int4;
        if (collective == Collective::all_reduce) request.quantized_result = QuantizedFormat::int8;
        requests.push_back(request);
      }
    }
  }
  return requests;
}
// On the flat links, where an element is packed as fast as it is copied.
double quantized_formula(const PlanRequest& request) {
  LinkCost cost = flat_cost();
  cost.quantize = cost.gamma * element_bytes;
  return seconds(request, cost, cost, element_bytes, request.size);
}

TEST(QuantizedSimulation, TakesTheTimeOfItsFormula) {
  for (const int size : {1, 2, 3, 4, 6, 8, 12, 16}) {
    for (const PlanRequest& request : quantized_requests(size, 1)) {
      SCOPED_TRACE(to_string({request}));
      const double formula = quantized_formula(request);
      EXPECT_NEAR(simulate(request, element_bytes, flat()).seconds, formula, 1e-9 * formula);
    }
  }
}

// The formula takes what is slowest to be busy all the time, and in its stead a piece's way through the rest: approximate.
TEST(QuantizedSimulation, PiecesHideWorkBehindMessages) {
  for (const int size : {2, 4, 8, 16}) {
    for (PlanRequest request : quantized_requests(size, 4)) {
      SCOPED_TRACE(to_string({request}));
      request.count *= 64;  // beside which latencies are small
      const double simulated = simulate(request, element_bytes, flat()).seconds;
      if (!needs_nodes(request.method.algorithm)) {  // elsewhere both levels share a rank's one port
        EXPECT_NEAR(simulated, quantized_formula(request), 0.15 * simulated);
      }
      request.method.pieces = 1;
      EXPECT_LT(simulated, simulate(request, element_bytes, flat()).seconds);
    }
  }
}

TEST(QuantizedSimulation, IsTheSameWhenOneUnitStandsForAll) {
  for (const int pieces : {1, 3}) {
    for (const PlanRequest& request : quantized_requests(16, pieces)) {
      SCOPED_TRACE(to_string({request}));
      const Simulation one = simulate(request, element_bytes, two_level(1));
      const Simulation all = simulate(request, element_bytes, two_level(1), {.symmetry = false});
      EXPECT_EQ(one.seconds, all.seconds);
      EXPECT_EQ(one.bytes_sent, all.bytes_sent);
    }
  }
}

TEST(QuantizedSimulation, CountsRecords) {
  PlanRequest request{.collective = Collective::reduce_scatter, .method = Algorithm::two_level, .size = 16, .count = 1000};
  request.ranks_per_node = 8;
  request.quantized = QuantizedFormat::int4;
  const Simulation result = simulate(request, element_bytes, two_level(1));
  const std::int64_t block = packed_bytes(request.quantized, request.count);
  EXPECT_THAT(result.bytes_sent, testing::ElementsAre(16 * 7 * 2 * block, 16 * block));
}

// As memory and a network card beside it. Two lanes, one of which sends inside the node and one to the other node.
TEST(Simulation, LevelsWithPortsOfTheirOwnDoNotWaitForOthers) {
  const auto plan_of = [](int rank) {
    Plan plan;
    plan.request = {.rank = rank, .size = 4};
    for (const int bit : {1, 2}) {
      const Slice slice{Buffer::input, 0, 1000};
      plan.lanes.push_back({{{StepKind::send, false, rank ^ bit, slice, {}},
                             {StepKind::recv, false, rank ^ bit, {}, {Buffer::output, 0, 1000}}},
                            {2}});
    }
    return plan;
  };
  LinkModel links{{{"node", 2, 0, 0, 0.25, 2}, {"network", 0, 0, 0, 0.125}}, 1};
  EXPECT_GE(simulate(4, plan_of, 4, links).seconds, 48e-6);  // one after the other
  links.levels[1].own_ports = true;
  EXPECT_EQ(simulate(4, plan_of, 4, links).seconds, 32e-6);
  const std::string text =
      R"({"levels": [{"name": "all", "alpha_us": 1, "overhead_us": 0, "bandwidth_gbs": 1, "own_ports": true}], "local_gbs": 1})";
  EXPECT_TRUE(link_model_from_text(text).levels[0].own_ports);
}

TEST(Simulation, OneUnitStandsForAllInARingButNotInATree) {
  const auto ranks = [](Collective collective, Algorithm algorithm, const LinkModel& links, std::int64_t count) {
    return simulate({.collective = collective, .method = algorithm, .size = 32, .count = count}, 4, links).ranks_simulated;
  };
  EXPECT_EQ(ranks(Collective::all_reduce, Algorithm::ring, flat(), 64), 1);
  EXPECT_EQ(ranks(Collective::all_reduce, Algorithm::ring, two_level(1), 64), 8);
  EXPECT_EQ(ranks(Collective::all_reduce, Algorithm::ring, two_level(1), 65), 32);               // uneven shares
  EXPECT_EQ(ranks(Collective::all_reduce, Algorithm::recursive_doubling, two_level(1), 64), 8);  // peers differ in a bit
  EXPECT_EQ(ranks(Collective::broadcast, Algorithm::binomial, two_level(1), 64), 32);
}

// All-gather by the ring at 32 ranks: one message in eight leaves its node, so that ports are enough. A plan in which every
// rank of a node sends to the next node at once needs all of them.
Plan to_the_next_node(int rank, int size) {
  Plan plan;
  plan.request = {.collective = Collective::all_to_all, .rank = rank, .size = size, .count = 1000};
  plan.lanes.resize(1);
  plan.lanes[0].steps = {{StepKind::send, false, (rank + 8) % size, {Buffer::input, 0, 1000}, {}},
                         {StepKind::recv, false, (rank + size - 8) % size, {}, {Buffer::output, 0, 1000}}};
  plan.lanes[0].round_ends = {2};
  return plan;
}

TEST(Simulation, MessagesOfANodeShareItsPorts) {
  const double occupied = 2e-6 + 4000 / 0.5e9;
  for (const int size : {16, 32, 64}) {
    for (const auto& [ports, in_turn] : {std::pair{8, 1}, {4, 2}, {1, 8}}) {
      const Simulation result = simulate(
          size, [&](int rank) { return to_the_next_node(rank, size); }, 4, two_level(ports));
      EXPECT_NEAR(result.seconds, in_turn * occupied + 8e-6, 1e-15) << ports;
      EXPECT_EQ(result.ranks_simulated, 8);
      EXPECT_THAT(result.bytes_sent, testing::ElementsAre(0, size * 4000));
    }
  }
}

TEST(Simulation, ReportsBytesFinishesAndSteps) {
  const PlanRequest request{.collective = Collective::all_gather, .size = 16, .count = 100};
  const Simulation result = simulate(request, 4, two_level(1), {.timeline = true});
  EXPECT_THAT(result.bytes_sent, testing::ElementsAre(15 * 14 * 400, 15 * 2 * 400));
  EXPECT_EQ(result.finish.size(), 16U);
  EXPECT_EQ(result.timeline.size(), 16U * (1 + 15 * 2));
  for (const TimedStep& step : result.timeline) {
    EXPECT_LT(step.begin, step.end);
    EXPECT_LE(step.end, result.seconds);
    EXPECT_EQ(step.bytes, 400);
  }
}

TEST(Simulation, CountsWhatIsReadAndWrittenInOtherRanksMemory) {
  for (const auto& [collective, algorithm] : every_algorithm()) {
    if (!shares_memory(algorithm)) continue;
    PlanRequest request{.collective = collective, .method = algorithm, .size = 12, .count = 30, .root = 9};
    if (collective == Collective::barrier) request.count = 1;
    const Simulation result = simulate(request, element_bytes, two_level(1));
    std::int64_t sum = 0;
    for (request.rank = 0; request.rank < request.size; ++request.rank) sum += make_plan(request).elements_sent();
    EXPECT_EQ(result.bytes_sent[0] + result.bytes_sent[1], sum * element_bytes) << name(collective) << name(algorithm);
    EXPECT_GT(result.bytes_sent[1], 0);  // from node to node, were it possible
  }
}

// A signal is known alpha later; it and the wait take no time of their own.
TEST(Simulation, WaitsForSignals) {
  const auto plan_of = [](int rank) {
    Plan plan;
    plan.request = {.collective = Collective::all_reduce, .rank = rank, .size = 2, .count = 1000};
    plan.lanes.resize(1);
    Lane& lane = plan.lanes[0];
    if (rank == 0) lane.steps.push_back({StepKind::copy, false, -1, {Buffer::input, 0, 1000}, {Buffer::output, 0, 1000}});
    lane.steps.push_back({StepKind::signal, false, -1, {}, {}});
    lane.steps.push_back({StepKind::wait, false, 1 - rank, {}, {}});
    for (std::size_t i = 1; i <= lane.steps.size(); ++i) lane.round_ends.push_back(i);
    return plan;
  };
  const Simulation result = simulate(2, plan_of, element_bytes, flat());
  const double copy = 4000 / 4e9;
  EXPECT_NEAR(result.finish[1], copy + 8e-6, 1e-14);
  EXPECT_NEAR(result.finish[0], 8e-6, 1e-14);  // its copy is hidden
  const auto never = [&](int rank) {
    Plan plan = plan_of(rank);
    if (rank == 0) plan.lanes[0] = {};
    return plan;
  };
  EXPECT_THAT(sentence_of([&] { simulate(2, never, element_bytes, flat()); }), testing::HasSubstr("Rank 1 waits forever"));
}

TEST(Simulation, SavesTheCopiesThatInPlaceNeedsNot) {
  const PlanRequest request{.collective = Collective::all_gather, .size = 4, .count = 1000};
  const double copy = 4000 / 4e9;
  EXPECT_NEAR(simulate(request, 4, flat()).seconds - simulate(request, 4, flat(), {.in_place = true}).seconds, copy, 1e-14);
}

TEST(Simulation, ReachesThousandsOfRanks) {
  const PlanRequest request{.collective = Collective::all_reduce, .size = 16384, .count = 16384};
  const Simulation ring = simulate(request, 4, two_level(1));
  EXPECT_EQ(ring.ranks_simulated, 8);
  PlanRequest tree{.collective = Collective::broadcast, .method = Algorithm::binomial, .size = 16384, .count = 16384};
  EXPECT_EQ(simulate(tree, 4, two_level(1)).ranks_simulated, 16384);
}

TEST(Simulation, RefusesWhatIsTooLargeOrDoesNotFitInASentence) {
  const PlanRequest uneven{.collective = Collective::all_reduce, .size = 16384, .count = 16385};
  EXPECT_THAT(sentence_of([&] { simulate(uneven, 4, flat()); }), testing::HasSubstr("bytes that divide evenly"));
  LinkModel small = flat();
  small.levels[0].ranks = 8;
  const PlanRequest large{.collective = Collective::all_reduce, .size = 16, .count = 16};
  EXPECT_THAT(sentence_of([&] { simulate(large, 4, small); }), testing::HasSubstr("holds 8 ranks; 16 do not fit"));
}

TEST(LinkModel, IsReadFromJson) {
  const LinkModel links = link_model_from_text(
      R"({"levels": [{"name": "node", "ranks": 8, "alpha_us": 1, "overhead_us": 0.5, "bandwidth_gbs": 8, "ports": 2},
                     {"name": "network", "alpha_us": 8, "overhead_us": 2, "bandwidth_gbs": 0.5}], "local_gbs": 16})");
  ASSERT_EQ(links.levels.size(), 2U);
  EXPECT_EQ(links.levels[0].name, "node");
  EXPECT_EQ(links.levels[0].ranks, 8);
  EXPECT_EQ(links.levels[0].ports, 2);
  EXPECT_EQ(links.levels[1].ranks, 0);
  EXPECT_EQ(links.levels[1].bandwidth_gbs, 0.5);
  EXPECT_EQ(links.local_gbs, 16);
}

TEST(LinkModel, IsRefusedInASentence) {
  const auto sentence = [](const std::string& level, const std::string& more = "") {
    const std::string text =
        R"({"levels": [{"name": "x", "alpha_us": 1, "overhead_us": 1)" + level + R"(}], "local_gbs": 1)" + more + "}";
    return sentence_of([&] { link_model_from_text(text); });
  };
  EXPECT_EQ(sentence(R"(, "bandwidth_gbs": 1)"), "");
  EXPECT_THAT(sentence(R"(, "bandwidth_gbs": 0)"), testing::HasSubstr("bandwidth_gbs = 0"));
  EXPECT_THAT(sentence(""), testing::HasSubstr("needs a number 'bandwidth_gbs'"));
  EXPECT_THAT(sentence(R"(, "bandwidth_gbs": 1, "bandwith": 1)"), testing::HasSubstr("has the key 'bandwith'"));
  EXPECT_THAT(sentence(R"(, "bandwidth_gbs": 1, "ports": 2)"), testing::HasSubstr("has no ports"));
  EXPECT_THAT(sentence(R"(, "bandwidth_gbs": 1, "ranks": 0)"), testing::HasSubstr("ranks = 0"));
  EXPECT_THAT(sentence(R"(, "bandwidth_gbs": 1)", R"(, "gamma": 2)"), testing::HasSubstr("has the key 'gamma'"));
  EXPECT_THAT(sentence_of([] { link_model_from_text("{"); }), testing::HasSubstr("no JSON"));
  EXPECT_THAT(sentence_of([] { link_model_from_file("/none"); }), testing::HasSubstr("'/none' cannot be read"));
}

}  // namespace
}  // namespace stretto
