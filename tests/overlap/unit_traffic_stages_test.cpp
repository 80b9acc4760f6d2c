// Training steps of a model whose values are integers: every use must find the values of its step, at every ZeRO stage, with
// and without overlap.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "integer_model.hpp"
#include "support/data.hpp"
#include "support/variables.hpp"

namespace stretto {
namespace {

class EveryStage : public testing::TestWithParam<ZeroStage> {};

TEST_P(EveryStage, EveryUseFindsItsValues) {
  for (const int ranks : {1, 2, 3}) {
    for (const bool overlap : {true, false}) {
      for (const int prefetch : {0, 1, 3}) {
        for (const int microbatches : {1, 3}) {
          run_threads(ranks, [&](const Communicator& world) {
            IntegerModel model(world, {GetParam(), prefetch, overlap, microbatches}, network(5), 5);
            for (int step = 0; step < 4; ++step) model.step();
            EXPECT_EQ(model.fault(), "") << ranks << " ranks, overlap " << overlap << ", prefetch " << prefetch;
            model.spoil();
            model.step();
            EXPECT_NE(model.fault(), "") << "the control";
          });
        }
      }
    }
  }
}

// Units that are slower than computation: every use waits for its own.
TEST_P(EveryStage, UsesWaitForSlowLinks) {
  const Variable nodes("STRETTO_RANKS_PER_NODE", "1");
  const Variable links("STRETTO_LINKS", "inter=1MB/s,200us");
  run_threads(2, [&](const Communicator& world) {
    IntegerModel model(world, {.stage = GetParam()}, network(5), 5);
    for (int step = 0; step < 4; ++step) model.step();
    EXPECT_EQ(model.fault(), "");
  });
}

// Any order of uses, also such that begin and end in each other, is learned.
TEST_P(EveryStage, RandomOrders) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    std::vector<ModelUse> order;
    for (int i = 0; i < 12; ++i) {
      const std::size_t unit = random() % 4;
      const auto pass = static_cast<Pass>(random() % 4);
      order.push_back({unit, pass, random() % 3 == 0 ? static_cast<int>(random() % 3) : 0});
    }
    run_threads(2, [&](const Communicator& world) {
      const ModelOptions how{
          .stage = GetParam(), .prefetch = static_cast<int>(seed % 3), .keep_through_step = seed % 2 == 1};
      IntegerModel model(world, how, order, 4);
      for (int step = 0; step < 3; ++step) model.step();
      EXPECT_EQ(model.fault(), "") << seed;
    });
  }
}

TEST_P(EveryStage, UsesOutsideAStepFindTheValuesToo) {
  run_threads(2, [&](const Communicator& world) {
    IntegerModel model(world, {.stage = GetParam()}, network(4), 4);
    for (int step = 0; step < 3; ++step) {
      for (const std::size_t unit : {2, 0, 3}) model.use({unit, Pass::forward}, 0);
      model.step();
    }
    EXPECT_EQ(model.fault(), "");
    EXPECT_EQ(model.traffic().live(), GetParam() == ZeroStage::values ? 0 : 4);
  });
}

TEST_P(EveryStage, LearnedUsesFindTheirValuesFromTheFirstStepOn) {
  for (const int microbatches : {1, 3}) {
    run_threads(3, [&](const Communicator& world) {
      IntegerModel model(world, {.stage = GetParam(), .microbatches = microbatches}, network(5), 5);
      model.learn();
      const auto gathers = [&] {
        const std::uint64_t since = world.job().ledger().next_sequence();
        model.step();
        return std::ranges::count(world.job().ledger().records(since), "parameters", &Record::tag);
      };
      const auto first = gathers();
      EXPECT_EQ(gathers(), first);
      EXPECT_EQ(model.fault(), "");
      EXPECT_EQ(model.most_live(), GetParam() == ZeroStage::values ? 2 : 5) << "in no step more than in others";
    });
  }
}

TEST_P(EveryStage, HalvesOfBackwardGiveTheBitsOfTheWhole) {
  for (const int prefetch : {0, 1, 3}) {
    for (const int microbatches : {1, 3}) {
      run_threads(2, [&](const Communicator& world) {
        const auto trained = [&](const std::vector<ModelUse>& order) {
          IntegerModel model(world, {.stage = GetParam(), .prefetch = prefetch, .microbatches = microbatches}, order, 5);
          for (int step = 0; step < 3; ++step) model.step();
          EXPECT_EQ(model.fault(), "");
          return model.shares();
        };
        const std::vector<Tensor> whole = trained(network(5));
        std::vector<ModelUse> halves = network_in_halves(5);
        EXPECT_TRUE(same_bits(trained(halves), whole));
        halves.pop_back();
        EXPECT_FALSE(same_bits(trained(halves), whole)) << "the control: a weight gradient is missing";
      });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, EveryStage, testing::ValuesIn(zero_stages),
                         [](const auto& stage) { return "zero" + std::to_string(static_cast<int>(stage.param)); });

}  // namespace
}  // namespace stretto
