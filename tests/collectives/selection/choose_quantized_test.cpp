// The choice of a method of quantized calls.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "collectives/selection/requests.hpp"
#include "support/error.hpp"

namespace stretto {
namespace {

using testing::HasSubstr;

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

}  // namespace
}  // namespace stretto
