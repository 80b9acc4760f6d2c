// Plans as text: what is written is read again, and the rest is refused with the number of its line.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "collectives/proof/every_algorithm.hpp"
#include "stretto/plan.hpp"
#include "stretto/planning/proof.hpp"
#include "support/error.hpp"

namespace stretto {
namespace {

void expect_round_trip(const std::vector<ProofCase>& cases) {
  ASSERT_FALSE(cases.empty());
  for (const ProofCase& each : cases) {
    for (const Plan& plan : plans_of(each)) {
      const std::string text = to_text(plan);
      const Plan read = plan_from_text(text);
      ASSERT_EQ(to_text(read), text);
      ASSERT_EQ(read.to_string(), plan.to_string());
      ASSERT_TRUE(plan_from_text(to_text(read)) == read) << text;
    }
  }
}

TEST(PlanText, IsReadAsItWasWrittenForEveryAlgorithm) {
  for (const AlgorithmCase& each : every_algorithm()) {
    for (const int size : {1, 2, 4, 6}) expect_round_trip(proof_cases(each.collective, each.algorithm, size));
  }
  for (const auto& [collective, algorithm] : {AlgorithmCase{Collective::all_reduce, Algorithm::two_level},
                                              AlgorithmCase{Collective::all_gather, Algorithm::direct},
                                              AlgorithmCase{Collective::reduce_scatter, Algorithm::two_level}}) {
    const QuantizedFormat result = collective == Collective::all_reduce ? QuantizedFormat::int8 : QuantizedFormat::none;
    expect_round_trip(quantized_proof_cases(collective, algorithm, 4, QuantizedFormat::int4, result));
  }
}

constexpr const char* head = "plan mine\ncollective all_gather\nmethod user\nrank 1\nsize 2\ncount 4\n";

TEST(PlanText, IsWhatTheHeaderDescribes) {
  const Plan plan = plan_from_text(std::string("# a comment\n\n") + head + R"(
scratch 4  # of elements
lane
copy output[4..8) = input[0..4), send input[0..4) to 0
recv output[0..4) from 0
)");
  EXPECT_EQ(plan.name, "mine");
  EXPECT_EQ(plan.request.collective, Collective::all_gather);
  EXPECT_EQ(plan.scratch_count, 4);
  ASSERT_EQ(plan.lanes.size(), 1U);
  EXPECT_EQ(plan.lanes[0].round_ends, (std::vector<std::size_t>{2, 3}));
  EXPECT_EQ(plan.lanes[0].steps[2],
            (Step{.kind = StepKind::recv, .peer = 0, .source = {}, .destination = {Buffer::output, 0, 4}}));
}

TEST(PlanText, RefusesTheRestWithTheLine) {
  const auto refused = [](const std::string& lines) {
    return sentence_of(ErrorCode::invalid_argument, [&] { plan_from_text(head + lines); });
  };
  using testing::HasSubstr;
  EXPECT_EQ(refused("scratch 4 5"), "Line 7 of the plan cannot be read: 'scratch' takes 1 values.");
  EXPECT_THAT(refused("\nsend input[0..4) to 0"), HasSubstr("Line 8 of the plan cannot be read: 'lane' is expected"));
  EXPECT_THAT(refused("lane\nsand input[0..4) to 0"), HasSubstr("Line 8 of the plan cannot be read: 'sand' is no kind"));
  EXPECT_THAT(refused("lane\nsend input[4..0) to 0"), HasSubstr("'input[4..0)' ends before it begins"));
  EXPECT_THAT(refused("lane\nsend input(0..4) to 0"), HasSubstr("is no slice"));
  EXPECT_THAT(refused("lane\nsend memory[0..4) to 0"), HasSubstr("'memory' is neither a buffer nor"));
  EXPECT_THAT(refused("lane\nsend input[0..4) from 0"), HasSubstr("'to' is expected in place of 'from'"));
  EXPECT_THAT(refused("lane\nsend input[0..4)"), HasSubstr("to is expected at the end of a step"));
  EXPECT_THAT(refused("lane\nsend input[0..4) to 99999999999"), HasSubstr("is no number"));
  EXPECT_THAT(refused("lane\nsignal signal"), HasSubstr("'finishes' is expected in place of 'signal'"));
  EXPECT_THAT(refused("lane\nsignal,"), HasSubstr("a step's kind is expected"));
  EXPECT_THAT(sentence_of([] { plan_from_text("plan mine"); }), HasSubstr("ends where 'collective' is expected"));
  EXPECT_THAT(sentence_of([] { plan_from_text("plan mine\ncollective all"); }), HasSubstr("Line 2 of the plan"));
}

}  // namespace
}  // namespace stretto
