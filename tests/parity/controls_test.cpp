// One fault in the parts that divide a model must break parity, at every ZeRO stage: otherwise the parity tests prove
// nothing.
#include <gmock/gmock.h>

#include "by_hand.hpp"

namespace parity {
namespace {

class Controls : public testing::TestWithParam<ZeroStage> {
 protected:
  static constexpr Layout layout{2, 2};

  static TrainingOptions options(ZeroStage stage) {
    TrainingOptions result = tiny(layout);
    result.clip_norm = 0;
    result.sharding.zero = stage;
    return result;
  }

  static Comparison with(const Fault& fault) {
    const Trace expected = train({1, 1}, options(ZeroStage::none)).front();
    return with_fault(layout, options(GetParam()), expected, fault);
  }
};

TEST_P(Controls, PassWithoutAFault) { EXPECT_EQ(with({}).all(), ""); }

// The gradients of one parameter are not summed over data-parallel ranks.
TEST_P(Controls, FailWithOneAxisLessInARecord) {
  const Comparison comparison = with({.in_records = [](Parameters& parameters) {
    for (const auto& parameter : parameters.all()) {
      if (parameter->name == "h.1.mlp.c_fc.weight") leave_out_of_sum(*parameter, Axis::data);
    }
  }});
  EXPECT_THAT(comparison.gradient, testing::HasSubstr("h.1.mlp.c_fc.weight"));
  EXPECT_NE(comparison.norm, "");
  EXPECT_NE(comparison.parameter, "");
}

// Backward finds zeros where the values of one parameter should have arrived; afterwards they are there again.
TEST_P(Controls, FailWithAGatherLeftOut) {
  const Comparison comparison = with({.not_gathered = "h.0.attn.c_proj.weight"});
  EXPECT_NE(comparison.gradient, "");
  EXPECT_NE(comparison.parameter, "");
}

// Each element of one share gets the gradient of its neighbour.
TEST_P(Controls, FailWithAShareThatIsOffByOne) {
  const Comparison comparison = with({.in_sums = [](ShardedParameters& sharded) {
    for (const ShardedParameters::Range& range : sharded.ranges()) {
      if (sharded.parameters().all()[range.parameter]->name != "wpe.weight") continue;
      for (std::int64_t i = 0; i + 1 < range.count; ++i) range.gradient.set(i, range.gradient.at(i + 1));
    }
  }});
  EXPECT_THAT(comparison.gradient, testing::HasSubstr("wpe.weight"));
  EXPECT_NE(comparison.parameter, "");
}

INSTANTIATE_TEST_SUITE_P(Stages, Controls, testing::ValuesIn(zero_stages),
                         [](const auto& stage) { return fmt::format("zero{}", static_cast<int>(stage.param)); });

}  // namespace
}  // namespace parity
