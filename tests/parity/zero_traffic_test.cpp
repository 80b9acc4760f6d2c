// The bytes that a rank sends in a step at every ZeRO stage, and with ZeRO++, to the byte.
#include "zero_traffic.hpp"

#include <gmock/gmock.h>

#include "support/tiers.hpp"
#include "support/variables.hpp"

namespace parity {
namespace {

TrainingOptions model_for(int ranks, std::int64_t microbatches, DType dtype) {
  TrainingOptions options = tiny({ranks, 1}, dtype);
  options.global_batch = microbatches * ranks;
  return options;
}

class ZeroTraffic : public testing::TestWithParam<ZeroStage> {};

// Values of 2 bytes and gradients of 4. The controls: the formula for another stage, and, where each microbatch is summed,
// for one microbatch more.
TEST_P(ZeroTraffic, IsThatOfTheFormula) {
  const NamedUses uses = uses_of_a_microbatch(tiny({1, 1}));
  for (const int ranks : of_today({2, 3, 4}, 3)) {
    for (const int microbatches : {1, 3}) {
      for (const int prefetch : {0, 1, 3}) {
        if (GetParam() < ZeroStage::values && prefetch != 1) continue;  // values are gathered once
        TrainingOptions options = model_for(ranks, microbatches, DType::bf16);
        options.sharding.zero = GetParam();
        options.sharding.prefetch = prefetch;
        for (const Trace& trace : train({ranks, 1}, options)) {
          const auto formula = [&](const TrainingOptions& of) { return zero_formula(of, {ranks, ranks}, trace, uses); };
          EXPECT_EQ(bytes_sent(trace), formula(options))
              << ranks << " ranks, " << microbatches << " microbatches, prefetch " << prefetch;
          TrainingOptions more = model_for(ranks, microbatches + 1, DType::bf16);
          more.sharding = options.sharding;
          EXPECT_EQ(bytes_sent(trace) == formula(more), GetParam() < ZeroStage::gradients);
          TrainingOptions other = options;
          other.sharding.zero = GetParam() == ZeroStage::values ? ZeroStage::none : ZeroStage::values;
          EXPECT_NE(bytes_sent(trace), formula(other));
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Stages, ZeroTraffic, testing::ValuesIn(zero_stages),
                         [](const auto& stage) { return fmt::format("zero{}", static_cast<int>(stage.param)); });

// Gathers counted by hand. Forward uses units 0, 1, 2 and 0 again, as a tied table is; backward the same in reverse.
TEST(ZeroFormula, KeepsAUnitThatIsAmongTheNextOnes) {
  const UnitGroups network = {{0}, {1}, {2}, {0}, {0}, {2}, {1}, {0}};
  const auto gathers = [&](int prefetch) { return gathers_of_a_step(network, 3, prefetch); };
  using testing::ElementsAre;
  EXPECT_THAT(gathers(1), ElementsAre(3, 2, 2));  // 0 stays where forward turns into backward
  EXPECT_EQ(gathers(0), gathers(1));
  EXPECT_THAT(gathers(2), ElementsAre(3, 2, 1));  // 2 stays as well, behind 0
  EXPECT_THAT(gathers(3), ElementsAre(1, 1, 1));
  // Where 0 ends first, 1 is still in use and does not count. Where 1 ends for the second time, 0 and 2 come before it.
  EXPECT_THAT(gathers_of_a_step({{0, 1}, {1}, {0}, {2}, {1}}, 3, 1), ElementsAre(1, 2, 1));
}

class ZeroPlusPlus : public testing::TestWithParam<std::tuple<int, bool>> {};  // ranks; whether plain calls take two levels

// Between nodes, gathers send e bytes an element, in int8 with qwZ about 1, and with hpZ only the first of a step sends any;
// sums send g bytes, in int4 with qgZ about 1/2. The control: the formula with another technique.
TEST_P(ZeroPlusPlus, SendsBetweenNodesWhatTheFormulaSays) {
  constexpr int per_node = 2;
  const auto [ranks, two_levels] = GetParam();
  const std::string method = two_levels ? "two_level(direct+direct)" : "direct";
  const Variable nodes("STRETTO_RANKS_PER_NODE", std::to_string(per_node));
  const Variable methods("STRETTO_ALGO", "all_reduce:ring;reduce_scatter:" + method + ";all_gather:" + method);
  const NamedUses uses = uses_of_a_microbatch(tiny({1, 1}));
  for (const int microbatches : {1, 2}) {
    std::vector<std::int64_t> between;
    for (const int techniques : {0, 1, 2, 4, 7}) {
      TrainingOptions options = model_for(ranks, microbatches, DType::bf16);
      options.sharding.zero = ZeroStage::values;
      if ((techniques & 1) != 0) options.sharding.hpz_size = per_node;
      if ((techniques & 2) != 0) options.sharding.qwz = QuantizedFormat::int8;
      if ((techniques & 4) != 0) options.sharding.qgz = QuantizedFormat::int4;
      std::int64_t of_all_ranks = 0;
      for (const Trace& trace : train({ranks, 1}, options)) {
        const BytesByTag sent = bytes_sent(trace);
        EXPECT_EQ(sent, zero_formula(options, {ranks, per_node}, trace, uses)) << techniques << " " << microbatches;
        EXPECT_EQ(sent.contains("parameters in node"), options.sharding.hpz_size > 1);
        TrainingOptions other = options;
        other.sharding.qgz = options.sharding.qgz == QuantizedFormat::none ? QuantizedFormat::int8 : QuantizedFormat::none;
        EXPECT_NE(sent, zero_formula(other, {ranks, per_node}, trace, uses));
        for (const auto& [tag, bytes] : sent) of_all_ranks += bytes.between_nodes;
      }
      between.push_back(of_all_ranks);
    }
    for (const std::size_t one : {1, 2, 3}) {
      EXPECT_LT(between[one], between[0]);
      EXPECT_LT(between[4], between[one]);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Nodes, ZeroPlusPlus, testing::Combine(testing::Values(4, 6), testing::Bool()),
                         [](const auto& each) {
                           return fmt::format("{}_ranks_{}", std::get<0>(each.param),
                                              std::get<1>(each.param) ? "two_level" : "direct");
                         });

}  // namespace
}  // namespace parity
