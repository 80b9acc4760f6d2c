// Plans of quantized collectives: proved, held against what they ought to send and how often they ought to quantize, and
// refused with one fault each.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <set>

#include "collectives/plan/nodes.hpp"
#include "collectives/plans/formulas.hpp"
#include "stretto/error.hpp"
#include "stretto/planning/proof.hpp"
#include "support/error.hpp"
#include "support/tiers.hpp"

namespace stretto {
namespace {

constexpr Collective collectives[] = {Collective::all_gather, Collective::reduce_scatter, Collective::all_reduce};

struct Case {
  Collective collective;
  Algorithm algorithm;
};
std::vector<Case> every_case() {
  std::vector<Case> cases;
  for (const Collective collective : collectives) {
    for (const Algorithm algorithm : algorithms_for(collective)) {
      if (quantizes(collective, algorithm)) cases.push_back({collective, algorithm});
    }
  }
  return cases;
}

class Quantized : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(All, Quantized, testing::ValuesIn(every_case()), [](const auto& parameter) {
  return std::string(name(parameter.param.collective)) + "_" + name(parameter.param.algorithm);
});

std::vector<ProofCase> cases_of(const Case& which, int size, QuantizedFormat format = QuantizedFormat::int4) {
  return quantized_proof_cases(which.collective, which.algorithm, size, format, QuantizedFormat::int8);
}
std::vector<int> nodes_of(const PlanRequest& request) {
  std::vector<int> nodes(request.size);
  if (!knows_nodes(request)) return nodes;
  const Nodes known = Nodes::of(request);
  for (int rank = 0; rank < request.size; ++rank) nodes[rank] = known.node_of(rank);
  return nodes;
}

TEST_P(Quantized, IsProvenAtManyRankCounts) {
  std::vector<int> sizes{16, 17, 24};
  for (int size = 1; size <= 12; ++size) sizes.push_back(size);
  if (all_tests()) sizes.insert(sizes.end(), {13, 14, 15, 32, 64});
  for (const int size : sizes) {
    const auto fault = prove(cases_of(GetParam(), size), 1);
    ASSERT_FALSE(fault) << *fault;
  }
}

TEST_P(Quantized, IsProvenInEveryFormat) {
  for (const QuantizedFormat format : {QuantizedFormat::int8, QuantizedFormat::fp8, QuantizedFormat::onebit}) {
    for (const int size : {1, 2, 5, 6}) {
      const auto fault = prove(cases_of(GetParam(), size, format), 1);
      ASSERT_FALSE(fault) << *fault;
    }
  }
}

// Once on the way; in two levels a node's sum once more, unless every node is a rank or there is one; a sum for all again.
TEST_P(Quantized, IsQuantizedAsOftenAsItsHops) {
  for (const int size : {1, 2, 3, 6, 8, 12}) {
    for (const ProofCase& which : cases_of(GetParam(), size)) {
      if (which.uneven || which.request.count < size) continue;
      int expected = 1;
      if (GetParam().algorithm == Algorithm::two_level && reduces(GetParam().collective)) {
        const Nodes nodes = Nodes::of(which.request);
        if (nodes.count() > 1 && nodes.count() < size) expected = 2;
      }
      if (GetParam().collective == Collective::all_reduce) ++expected;
      EXPECT_EQ(most_quantizations(plans_of(which)), expected) << to_string(which);
    }
  }
}

TEST_P(Quantized, SendsTheBytesOfTheFormula) {
  for (const int size : {1, 2, 3, 4, 6, 7, 8, 12, 16, 24}) {
    for (const ProofCase& which : cases_of(GetParam(), size)) {
      const std::vector<Plan> plans = plans_of(which);
      const std::vector<int> nodes = nodes_of(which.request);
      formulas::QuantizedBytes sent;
      for (const Plan& plan : plans) {
        const std::int64_t between = plan.bytes_between_nodes(4, nodes);
        sent.between += between;
        sent.inside += plan.bytes_sent(4) - between;
      }
      const formulas::QuantizedBytes formula = formulas::quantized_bytes(plans[0].request);
      EXPECT_EQ(sent.inside, formula.inside) << to_string(which);
      EXPECT_EQ(sent.between, formula.between) << to_string(which);
    }
  }
}

// In one piece a rank sends each peer one message a hop: there is no third way to a peer.
TEST_P(Quantized, SendsAPeerOneMessageAHop) {
  const int hops_to_a_peer = GetParam().collective == Collective::all_reduce ? 2 : 1;
  for (const ProofCase& which : cases_of(GetParam(), 12)) {
    for (const Plan& plan : plans_of(which)) {
      std::map<int, int> messages;
      for (const Step& step : plan.lanes[0].steps) {
        if (step.kind == StepKind::send) ++messages[step.peer];
      }
      for (const auto& [peer, count] : messages) {
        EXPECT_LE(count, hops_to_a_peer * which.request.method.pieces) << to_string(which) << " to " << peer;
      }
    }
  }
}

// Where each error lies does not depend on the pieces, so that they may change from one call to the next.
TEST_P(Quantized, ErrorStateDoesNotDependOnPieces) {
  const auto places = [](const Plan& plan) {
    std::map<int, std::vector<bool>> by_hop;
    for (const Step& step : plan.lanes[0].steps) {
      if (step.kind != StepKind::quantize && step.kind != StepKind::requantize) continue;
      std::vector<bool>& its = by_hop[static_cast<int>(step.hop)];
      its.resize(static_cast<std::size_t>(plan.residual_counts[static_cast<std::size_t>(step.hop)]));
      for (std::int64_t i = 0; i < step.destination.count; ++i) its[static_cast<std::size_t>(step.residual + i)] = true;
    }
    return by_hop;
  };
  for (ProofCase which : cases_of(GetParam(), 6)) {
    if (which.request.count == 0) continue;
    const std::vector<Plan> plans = plans_of(which);
    which.request.method.pieces = 1;
    const std::vector<Plan> whole = plans_of(which);
    for (std::size_t rank = 0; rank < plans.size(); ++rank) {
      EXPECT_EQ(plans[rank].residual_counts, whole[rank].residual_counts);
      EXPECT_EQ(places(plans[rank]), places(whole[rank])) << to_string(which);
      for (const auto& [hop, its] : places(whole[rank])) {
        EXPECT_EQ(std::count(its.begin(), its.end(), false), 0) << name(static_cast<Hop>(hop));
      }
    }
  }
}

PlanRequest request_for(Collective collective, Algorithm algorithm, int size, std::int64_t count, int on_node = 0) {
  PlanRequest request{.collective = collective, .method = algorithm, .size = size, .count = count};
  request.ranks_per_node = on_node;
  request.quantized = QuantizedFormat::int4;
  if (collective == Collective::all_reduce) request.quantized_result = QuantizedFormat::int8;
  return request;
}

TEST(QuantizedTwoLevel, CrossesTheBoundaryWithOneSumOfEachBlockAndNode) {
  const std::int64_t count = 1000;
  for (const auto& [size, on_node] : {std::pair{8, 2}, {8, 4}, {12, 3}}) {
    PlanRequest request = request_for(Collective::reduce_scatter, Algorithm::two_level, size, count, on_node);
    for (request.rank = 0; request.rank < size; ++request.rank) {
      const std::int64_t sums = size / on_node - 1;  // of blocks that it carries for others
      EXPECT_EQ(make_plan(request).bytes_between_nodes(4, nodes_of(request)), sums * packed_bytes(request.quantized, count));
    }
  }
}

TEST(QuantizedPieces, AreWorkedOnWhileOthersAreUnderWay) {
  for (const Collective collective : collectives) {
    PlanRequest request = request_for(collective, Algorithm::two_level, 8, 64 * 1024, 4);
    request.method.pieces = 8;
    const Plan plan = make_plan(request);
    const Lane& lane = plan.lanes[0];
    std::size_t most = 0;
    std::size_t at = 0;
    for (const std::size_t end : lane.round_ends) {
      std::set<StepKind> kinds;
      bool worked = false;
      for (; at < end; ++at) {
        const StepKind kind = lane.steps[at].kind;
        kinds.insert(kind);
        worked |= quantizes(kind);
        EXPECT_FALSE(worked && !quantizes(kind)) << "a message behind work";
      }
      most = std::max(most, kinds.size());
    }
    EXPECT_GE(most, collective == Collective::reduce_scatter ? 5U : 4U) << name(collective);
  }
}

TEST(QuantizedPlans, SayWhatCannotBe) {
  const auto sentence = [](const PlanRequest& request) { return sentence_of([&] { make_plan(request); }); };
  using testing::HasSubstr;
  EXPECT_THAT(sentence(request_for(Collective::broadcast, Algorithm::direct, 4, 8)),
              HasSubstr("broadcast cannot be quantized; all_gather, reduce_scatter and all_reduce can"));
  EXPECT_THAT(sentence(request_for(Collective::all_reduce, Algorithm::ring, 4, 8)),
              HasSubstr("A quantized all_reduce cannot be done by ring; choose two_shot or two_level"));
  EXPECT_THAT(sentence(request_for(Collective::all_gather, Algorithm::two_shot, 4, 8)),
              HasSubstr("choose direct or two_level"));
  EXPECT_THAT(sentence(request_for(Collective::all_gather, Algorithm::two_level, 4, 8)), HasSubstr("ranks_per_node"));
  PlanRequest request = request_for(Collective::all_gather, Algorithm::two_level, 4, 8);
  request.node_sizes = {1, 2};
  EXPECT_THAT(sentence(request), HasSubstr("node_sizes 1, 2 are not of 4 ranks"));
  request.node_sizes = {1, 3};
  EXPECT_EQ(sentence(request), "");
  request.method = method_from_text("two_level(ring+ring)");
  EXPECT_THAT(sentence(request), HasSubstr("has no parts to choose"));
  request = request_for(Collective::all_gather, Algorithm::direct, 4, 8);
  request.quantized_result = QuantizedFormat::int8;
  EXPECT_THAT(sentence(request), HasSubstr("leave quantized_result, int8, out"));
  request = request_for(Collective::all_reduce, Algorithm::two_shot, 4, 8);
  request.quantized_result = QuantizedFormat::none;
  EXPECT_THAT(sentence(request), HasSubstr("quantized_result is none"));
  request = {.collective = Collective::all_reduce, .method = Algorithm::two_shot, .size = 4, .count = 8};
  request.method.pieces = 4;
  EXPECT_THAT(sentence(request), HasSubstr("cannot go in 4 pieces"));
  EXPECT_EQ(to_string(method_from_text("two_level/4")), "two_level/4");
}

// ---- one fault each, at every place where it changes something

using Mutation = bool (*)(Plan&, Lane&, std::size_t step);  // false: does not apply at this step
struct NamedMutation {
  const char* name;
  Mutation apply;
};

bool exchanges(const Step& step) { return step.kind == StepKind::send || step.kind == StepKind::recv; }
bool leaves_out(const Step& step) { return step.kind == StepKind::quantize || step.kind == StepKind::requantize; }
QuantizedFormat another(QuantizedFormat format) {
  return format == QuantizedFormat::int4 ? QuantizedFormat::int8 : QuantizedFormat::int4;
}
bool change_format(Slice& slice) {
  if (slice.buffer != Buffer::packed) return false;
  slice.format = another(slice.format);
  return true;
}

// Whether a step of [begin, middle) makes what one of [middle, end) takes.
bool feeds(const Lane& lane, std::size_t begin, std::size_t middle, std::size_t end) {
  for (std::size_t i = begin; i < middle; ++i) {
    for (std::size_t j = middle; j < end; ++j) {
      const Slice& made = lane.steps[i].destination;
      const Slice& taken = lane.steps[j].source;
      if (lane.steps[i].kind == StepKind::send || lane.steps[j].kind == StepKind::recv) continue;
      if (made.buffer == taken.buffer && made.format == taken.format && made.offset < taken.offset + taken.count &&
          taken.offset < made.offset + made.count) {
        return true;
      }
    }
  }
  return false;
}

const NamedMutation mutations[] = {
    {"step_dropped",
     [](Plan&, Lane& lane, std::size_t i) {
       lane.steps.erase(lane.steps.begin() + static_cast<std::ptrdiff_t>(i));
       for (std::size_t& end : lane.round_ends) end -= end > i ? 1 : 0;
       return true;
     }},
    {"message_repeated",
     [](Plan&, Lane& lane, std::size_t i) {
       if (!exchanges(lane.steps[i])) return false;
       lane.steps.push_back(Step(lane.steps[i]));
       lane.round_ends.push_back(lane.steps.size());
       return true;
     }},
    {"peer_swapped",
     [](Plan& plan, Lane& lane, std::size_t i) {
       Step& step = lane.steps[i];
       if (step.peer == -1 || plan.request.size < 3) return false;
       do step.peer = (step.peer + 1) % plan.request.size;
       while (step.peer == plan.request.rank);
       return true;
     }},
    {"source_moved_by_a_group",
     [](Plan&, Lane& lane, std::size_t i) {
       lane.steps[i].source.offset += group_elements(lane.steps[i].source.format);
       return lane.steps[i].kind != StepKind::recv;
     }},
    {"source_moved_by_an_element",
     [](Plan&, Lane& lane, std::size_t i) {
       lane.steps[i].source.offset += 1;
       return lane.steps[i].kind != StepKind::recv;
     }},
    {"destination_moved_by_a_group",
     [](Plan&, Lane& lane, std::size_t i) {
       lane.steps[i].destination.offset += group_elements(lane.steps[i].destination.format);
       return lane.steps[i].kind != StepKind::send;
     }},
    {"count_shortened",
     [](Plan&, Lane& lane, std::size_t i) {
       lane.steps[i].source.count -= lane.steps[i].kind != StepKind::recv ? 1 : 0;
       lane.steps[i].destination.count -= lane.steps[i].kind != StepKind::send ? 1 : 0;
       return true;
     }},
    // Into what fills up the last group.
    {"count_lengthened",
     [](Plan&, Lane& lane, std::size_t i) {
       Step& step = lane.steps[i];
       if (!quantizes(step.kind) || step.kind == StepKind::quantize) return false;
       if (step.source.count % group_elements(step.source.format) == 0) return false;
       ++step.source.count;
       ++step.destination.count;
       return true;
     }},
    {"source_in_another_format", [](Plan&, Lane& lane, std::size_t i) { return change_format(lane.steps[i].source); }},
    {"destination_in_another_format",
     [](Plan&, Lane& lane, std::size_t i) { return change_format(lane.steps[i].destination); }},
    {"records_taken_for_elements",
     [](Plan&, Lane& lane, std::size_t i) {
       Slice& slice = lane.steps[i].kind == StepKind::recv ? lane.steps[i].destination : lane.steps[i].source;
       if (slice.buffer != Buffer::packed) return false;
       slice = {Buffer::output, 0, slice.count};
       return true;
     }},
    {"vector_left_out", [](Plan&, Lane& lane, std::size_t i) { return lane.steps[i].vectors-- > 1; }},
    {"vector_too_many", [](Plan&, Lane& lane, std::size_t i) { return ++lane.steps[i].vectors > 1; }},
    {"vectors_further_apart",
     [](Plan&, Lane& lane, std::size_t i) {
       lane.steps[i].apart += group_elements(lane.steps[i].source.format);
       return lane.steps[i].vectors > 1;
     }},
    {"same_vector_twice",
     [](Plan&, Lane& lane, std::size_t i) {
       lane.steps[i].apart = 0;
       return lane.steps[i].vectors > 1;
     }},
    {"finish_forgotten",
     [](Plan& plan, Lane& lane, std::size_t i) {
       const bool finished = lane.steps[i].finishes;
       lane.steps[i].finishes = false;
       return finished && plan.request.size > 1;
     }},
    {"finished_too_early",
     [](Plan&, Lane& lane, std::size_t i) {
       const bool finished = lane.steps[i].finishes;
       lane.steps[i].finishes = true;
       return !finished;
     }},
    {"never_unpacked",
     [](Plan&, Lane& lane, std::size_t i) {
       if (!quantizes(lane.steps[i].kind)) return false;
       lane.steps[i].kind = StepKind::copy;
       lane.steps[i].finishes = false;
       return true;
     }},
    {"added_on_arrival",
     [](Plan&, Lane& lane, std::size_t i) {
       if (lane.steps[i].kind != StepKind::recv) return false;
       lane.steps[i].kind = StepKind::recv_reduce;
       lane.steps[i].source = lane.steps[i].destination;
       return true;
     }},
    {"errors_moved",
     [](Plan&, Lane& lane, std::size_t i) {
       lane.steps[i].residual += 1;
       return leaves_out(lane.steps[i]);
     }},
    {"errors_of_another_hop",
     [](Plan&, Lane& lane, std::size_t i) {
       lane.steps[i].hop = static_cast<Hop>((static_cast<int>(lane.steps[i].hop) + 1) % hops);
       return leaves_out(lane.steps[i]);
     }},
    {"rounds_merged",
     [](Plan&, Lane& lane, std::size_t i) {
       const auto end = std::find(lane.round_ends.begin(), lane.round_ends.end(), i + 1);
       if (end == lane.round_ends.end() || end + 1 == lane.round_ends.end()) return false;
       if (!feeds(lane, end == lane.round_ends.begin() ? 0 : *(end - 1), *end, *(end + 1))) return false;
       lane.round_ends.erase(end);
       return true;
     }},
    {"packed_memory_too_small",
     [](Plan& plan, Lane& lane, std::size_t i) {
       const Slice& made = lane.steps[i].destination;
       if (lane.steps[i].kind == StepKind::send || made.buffer != Buffer::packed) return false;
       std::int64_t& room = plan.packed_counts[static_cast<std::size_t>(made.format)];
       return made.offset + whole_groups(made.format, made.count) == room--;
     }},
};

class EveryFault : public testing::TestWithParam<NamedMutation> {};
INSTANTIATE_TEST_SUITE_P(All, EveryFault, testing::ValuesIn(mutations),
                         [](const auto& parameter) { return std::string(parameter.param.name); });

TEST_P(EveryFault, IsRefusedWhereverItApplies) {
  int applied = 0;
  for (const Case& of : every_case()) {
    for (const int size : {2, 3, 4, 6}) {
      for (const ProofCase& which : cases_of(of, size)) {
        const bool odd = which.request.count > size && which.request.count % 2 == 1;
        if (!odd || (which.request.method.pieces > 1 && size > 4)) continue;
        const std::vector<Plan> good = plans_of(which);
        auto plans = good;
        const std::size_t step_stride = good[0].lanes[0].steps.size() > 60 ? 5 : 1;
        for (std::size_t rank = 0; rank<good.size(); rank += size> 4 ? 2 : 1) {
          for (std::size_t i = rank % step_stride; i < good[rank].lanes[0].steps.size(); i += step_stride) {
            plans[rank] = good[rank];
            if (!GetParam().apply(plans[rank], plans[rank].lanes[0], i)) continue;
            ++applied;
            EXPECT_TRUE(verify(plans, false)) << to_string(which) << ": rank " << rank << ", step " << i << "\n"
                                              << plans[rank].to_string();
            if (HasFailure()) return;
          }
          plans[rank] = good[rank];
        }
      }
    }
  }
  EXPECT_GT(applied, 20);
  RecordProperty("applied", applied);
}

}  // namespace
}  // namespace stretto
