// Training in f64 on every layout of up to eight ranks against one rank that accumulates over the same global batch, and the
// traffic of each layout. The controls show that each comparison can fail.
#include <gmock/gmock.h>

#include "parity.hpp"
#include "support/tiers.hpp"
#include "traffic.hpp"
#include "zero_traffic.hpp"

namespace parity {
namespace {

class Parity : public testing::TestWithParam<Layout> {};

TEST_P(Parity, EqualsOneRankAndSendsWhatTheFormulasSay) {
  const TrainingOptions options = tiny(GetParam());
  const Trace expected = train({1, 1}, options).front();
  for (const double norm : expected.norms) EXPECT_GT(norm, options.clip_norm);
  const std::vector<Trace> traces = train(GetParam(), options);
  double worst = 0;
  for (std::size_t rank = 0; rank < traces.size(); ++rank) {
    const Comparison comparison = compare(expected, traces[rank], parity_tolerance);
    EXPECT_EQ(comparison.all(), "") << "rank " << rank;
    worst = std::max(worst, comparison.worst);
  }
  RecordProperty("worst_relative_difference", fmt::format("{:.2g}", worst));
  EXPECT_EQ(traffic_divergence(GetParam(), options, traces), "");
}

std::vector<Layout> layouts() {
  std::vector<Layout> result;
  for (int data = 1; data <= 8; ++data) {
    for (int tensor = 1; data * tensor <= 8; ++tensor) result.push_back({data, tensor});
  }
  return result;
}

INSTANTIATE_TEST_SUITE_P(DataByTensor, Parity, testing::ValuesIn(of_today(layouts(), 3)),
                         [](const auto& cell) { return fmt::format("{}x{}", cell.param.data, cell.param.tensor); });

class ZeroParity : public testing::TestWithParam<ZeroStage> {};

void equals_one_rank(Layout layout, int microbatches, ZeroStage stage, Recompute level) {
  TrainingOptions options = tiny(layout);
  options.global_batch = static_cast<std::int64_t>(microbatches) * layout.data;
  const Trace expected = train({1, 1}, options).front();
  options.sharding.zero = stage;
  if (stage == ZeroStage::values && layout.data % 2 == 0) options.sharding.hpz_size = 2;
  options.recompute = {.level = level, .partition = level == Recompute::full && layout.tensor > 1};
  TrainingOptions of_uses = tiny({1, 1});
  of_uses.recompute.level = level;
  const NamedUses uses = uses_of_a_microbatch(of_uses);
  for (const Trace& trace : train(layout, options)) {
    EXPECT_EQ(compare(expected, trace, parity_tolerance).all(), "")
        << layout.data << "x" << layout.tensor << ", " << microbatches << " microbatches, recompute "
        << static_cast<int>(level);
    EXPECT_EQ(bytes_sent(trace), zero_formula(options, {layout.data, layout.data}, trace, uses));
  }
}

// Microbatches are summed one by one from stage 2 on, hpZ gathers from a second copy, and full recomputation gathers once
// more.
TEST_P(ZeroParity, EqualsOneRankAndSendsWhatTheFormulasSay) {
  const std::array levels = {Recompute::none, Recompute::selective, Recompute::full};
  std::size_t turn = 0;  // by default each layout has one level after the other
  for (const Layout layout : layouts()) {
    if (layout.data == 1 || (!all_tests() && layout.data * layout.tensor % 2 != 0)) continue;
    for (const int microbatches : {1, 3}) {
      ++turn;
      for (std::size_t i = 0; i < levels.size(); ++i) {
        if (all_tests() || turn % levels.size() == i) equals_one_rank(layout, microbatches, GetParam(), levels[i]);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Stages, ZeroParity, testing::ValuesIn(zero_stages),
                         [](const auto& stage) { return fmt::format("zero{}", static_cast<int>(stage.param)); });

// One rank and many ranks would make the same mistake here, so this test does not compare them: after one step, the first
// moments are 1 - beta1 times the gradient that the optimizer used.
TEST(Clipping, BoundsTheNormOfWhatTheOptimizerGets) {
  run_threads(1, [](const Communicator& world) {
    for (const double factor : {0.0, 0.5, 2.0}) {  // 0: no clipping
      TrainingOptions options = tiny({1, 1});
      Trainer probe(Mesh(world, {{Axis::tensor, 1}, {Axis::data, 1}}), options);
      const double norm = probe.compute_gradients(text_of_step(options, 0)).gradient_norm;
      options.clip_norm = factor * norm;
      Trainer trainer(Mesh(world, {{Axis::tensor, 1}, {Axis::data, 1}}), options);
      EXPECT_DOUBLE_EQ(trainer.step(text_of_step(options, 0), 1e-3).gradient_norm, norm);
      double squares = 0;
      for (const auto& state : trainer.optimizer().states()) {
        const Tensor& m = state.slots[0];
        for (std::int64_t i = 0; i < m.size(); ++i) squares += m.at(i) * m.at(i);
      }
      const double used = factor == 0.5 ? 0.5 * norm : norm;
      EXPECT_NEAR(std::sqrt(squares), (1 - AdamW::Options().beta1) * used, 1e-12 * norm) << factor;
    }
  });
}

// The mean is right also when the ranks do not divide the slots evenly.
TEST(Evaluate, IsTheMeanOverAllSlotsOnAnyLayout) {
  const auto losses = [](Layout layout) {
    TrainingOptions options = tiny({1, 1});
    options.global_batch = 6;
    std::vector<double> result(static_cast<std::size_t>(layout.ranks()));
    run_threads(layout.ranks(), [&](const Communicator& world) {
      Trainer trainer(Mesh(world, layout.mesh()), options);
      result[static_cast<std::size_t>(world.rank())] = trainer.evaluate(text_of_step(options, 0), 5);
    });
    return result;
  };
  const double expected = losses({1, 1}).front();
  EXPECT_NEAR(expected, std::log(61), 0.1);  // the model is untrained
  for (const Layout& layout :
       {Layout{2, 1}, {3, 1}, {6, 1}, {1, 2}, {2, 4}, {.pipeline = 2, .ring = 2}, {.pipeline = 2, .ulysses = 2}}) {
    for (const double loss : losses(layout)) EXPECT_NEAR(loss, expected, parity_tolerance * expected);
  }
}

// Each rank trains alone on its share of the batch, as if gradients were never summed.
TEST(ParityControl, FailsWithoutTheSumOverDataParallelRanks) {
  const TrainingOptions options = tiny({2, 1});
  const Trace expected = train({1, 1}, options).front();
  TrainingOptions share = options;
  share.global_batch = options.global_batch / 2;
  run_threads(2, [&](const Communicator& world) {
    const Communicator alone = world.split(world.rank(), 0, "alone");
    Trainer trainer(Mesh(alone, {{Axis::tensor, 1}, {Axis::data, 1}}), share);
    const Comparison comparison = compare(expected, advance(trainer, 0, trained_steps), parity_tolerance);
    EXPECT_THAT(comparison.loss, testing::HasSubstr("loss[0]"));
    EXPECT_THAT(comparison.norm, testing::HasSubstr("gradient norm[0]"));
    EXPECT_THAT(comparison.gradient, testing::HasSubstr("in step 0, the gradient of"));
    EXPECT_THAT(comparison.parameter, testing::HasSubstr("expected"));
  });
}

// Rank 1 adds zeros to the sum of one layer, as if that sum were missing.
TEST(ParityControl, FailsWithoutTheSumOfOneLayer) {
  const TrainingOptions options = tiny({1, 2});
  const Trace expected = train({1, 1}, options).front();
  const auto traces = train({1, 2}, options, [](Trainer& trainer) {
    for (const auto& parameter : trainer.parameters().all()) {
      if (parameter->name == "h.1.mlp.c_proj.weight" && trainer.mesh().rank(Axis::tensor) == 1) parameter->value.zero();
    }
  });
  const Comparison comparison = compare(expected, traces.front(), parity_tolerance);
  EXPECT_NE(comparison.loss, "");
  EXPECT_NE(comparison.norm, "");
  EXPECT_NE(comparison.gradient, "");
  EXPECT_NE(comparison.parameter, "");
}

TEST(ParityControl, FailsWithOneMicrobatchLess) {
  const TrainingOptions options = tiny({2, 1});
  const Trace expected = train({1, 1}, options).front();
  TrainingOptions fewer = options;
  fewer.global_batch -= options.micro_batch;
  const Comparison comparison = compare(expected, train({1, 1}, fewer).front(), parity_tolerance);
  EXPECT_NE(comparison.loss, "");
  EXPECT_NE(comparison.gradient, "");
}

TEST(ParityControl, FailsOnANumberThatIsNone) {
  const Trace expected = train({1, 1}, tiny({1, 1})).front();
  Trace broken = expected;
  EXPECT_EQ(compare(expected, broken, equal_bits).all(), "");
  broken.parameters["wte.weight"].values[5] = NAN;
  EXPECT_THAT(compare(expected, broken, parity_tolerance).parameter, testing::HasSubstr("wte.weight[5]"));
}

TEST(TrafficControl, FailsOnAnOperationTooManyOrTooFew) {
  const Layout layout{2, 2};
  const TrainingOptions options = tiny(layout);
  const std::vector<Trace> traces = train(layout, options);
  ASSERT_EQ(traffic_divergence(layout, options, traces), "");
  std::map<std::string, Record> one_of_each;
  for (const Record& record : traces[3].records) one_of_each[record.tag] = record;
  EXPECT_EQ(one_of_each.size(), 9U);
  for (const auto& entry : one_of_each) {
    const std::string& tag = entry.first;
    const Record& record = entry.second;
    std::vector<Trace> more = traces;
    more[3].records.push_back(record);
    EXPECT_NE(traffic_divergence(layout, options, more), "") << tag;
    std::vector<Trace> less = traces;
    std::erase_if(less[3].records, [&](const Record& each) { return each.sequence == record.sequence; });
    EXPECT_NE(traffic_divergence(layout, options, less), "") << tag;
    std::vector<Trace> larger = traces;
    for (Record& each : larger[3].records) each.bytes_sent += each.tag == tag ? 8 : 0;
    EXPECT_NE(traffic_divergence(layout, options, larger), "") << tag;
  }
}

}  // namespace
}  // namespace parity
