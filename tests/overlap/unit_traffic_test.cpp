// What the traffic of units gathers, keeps and sums in a step, in which order, and what it refuses.
#include "stretto/overlap/unit_traffic.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "integer_model.hpp"
#include "support/data.hpp"
#include "support/error.hpp"

namespace stretto {
namespace {

TEST(UnitTraffic, UnitsThatAreNotWholeAreUpdatedByShare) {
  run_threads(3, [](const Communicator& world) {
    IntegerModel model(world, {.stage = ZeroStage::none, .whole = {true, false, true, false}}, network(4), 4);
    for (int step = 0; step < 4; ++step) model.step();
    EXPECT_EQ(model.fault(), "");
    EXPECT_TRUE(model.traffic().is_whole(0));
    EXPECT_FALSE(model.traffic().is_whole(1));
    EXPECT_THAT(sentence_of([&] {
                  model.traffic().set_whole({true, true, true, true});
                }),
                testing::HasSubstr("Unit 1 was updated by share"));
  });
}

// Uses do not nest here, so that one unit is in use at a time.
TEST(UnitTraffic, HoldsNoMoreUnitsThanItMay) {
  run_threads(2, [](const Communicator& world) {
    for (const int prefetch : {0, 1, 2}) {
      IntegerModel model(world, {.prefetch = prefetch}, network(6), 6);
      for (int step = 0; step < 3; ++step) model.step();
      EXPECT_EQ(model.most_live(), 1 + prefetch);
    }
  });
}

// A step's gathers: each unit once for forward and once for backward, but those that stay in between.
TEST(UnitTraffic, GathersWhatLeavesAndNothingElse) {
  run_threads(2, [](const Communicator& world) {
    const auto gathers = [&](ZeroStage stage, int microbatches, const std::vector<ModelUse>& order = network(6)) {
      IntegerModel model(world, {.stage = stage, .microbatches = microbatches}, order, 6);
      model.step();
      const std::uint64_t since = world.job().ledger().next_sequence();
      model.step();
      return std::ranges::count(world.job().ledger().records(since), "parameters", &Record::tag);
    };
    // Forward gathers 0 to 5 and 0 again. This 0 stays for the first use of backward, which gathers 5 to 0.
    EXPECT_EQ(gathers(ZeroStage::values, 1), 7 + 6);
    EXPECT_EQ(gathers(ZeroStage::values, 2), 2 * (7 + 6) - 1) << "the last 0 stays for the next microbatch";
    EXPECT_EQ(gathers(ZeroStage::values, 1, network_in_halves(6)), 7 + 6) << "gradients of weights need none";
    EXPECT_EQ(gathers(ZeroStage::values, 2, network_in_halves(6)), 2 * (7 + 6) - 1) << "the last 0 outlasts them";
    EXPECT_EQ(gathers(ZeroStage::optimizer, 1), 6);
    EXPECT_EQ(gathers(ZeroStage::optimizer, 3), 6);
    EXPECT_EQ(gathers(ZeroStage::none, 1), 0);
  });
}

TEST(UnitTraffic, EachHalfOfBackwardHasWhatItNeedsAndNoMore) {
  run_threads(2, [](const Communicator& world) {
    IntegerModel model(world, {.stage = ZeroStage::values, .microbatches = 1}, network_in_halves(4), 4);
    for (int step = 0; step < 3; ++step) model.step();
    EXPECT_EQ(model.most_live(), 2);
    EXPECT_EQ(model.most_live_unread(), 0);
    UnitTraffic& traffic = model.traffic();
    const auto needs = [&](Pass pass) {
      traffic.begin_use(1, pass);
      const std::pair found{model.unit(1).has_values(), model.unit(1).has_gradients()};
      traffic.end_use(1);
      return found;
    };
    EXPECT_EQ(needs(Pass::backward_input), std::pair(true, false));
    EXPECT_EQ(needs(Pass::backward_weight), std::pair(false, true));
  });
}

// A unit that was prefetched is there for the use that it was prefetched for, although uses that do not read it come before.
TEST(UnitTraffic, PrefetchedUnitsOutlastUsesThatDoNotReadThem) {
  run_threads(2, [](const Communicator& world) {
    // 1 is gathered during the first use of 0, which stays for its next use.
    IntegerModel model(world, {.stage = ZeroStage::values, .microbatches = 1},
                       {{0, Pass::forward}, {1, Pass::backward_weight}, {0, Pass::forward}, {1, Pass::forward}}, 2);
    model.step();
    const std::uint64_t since = world.job().ledger().next_sequence();
    model.step();
    EXPECT_EQ(std::ranges::count(world.job().ledger().records(since), "parameters", &Record::tag), 2);
    EXPECT_EQ(model.fault(), "");
  });
}

// Two microbatches of a pipeline: forwards of both, and then their backwards.
std::vector<ModelUse> network_in_turns(std::size_t units) {
  std::vector<ModelUse> order;
  for (const Pass pass : {Pass::forward, Pass::forward, Pass::backward, Pass::backward}) {
    for (std::size_t i = 0; i < units; ++i) order.push_back({pass == Pass::forward ? i : units - 1 - i, pass});
  }
  return order;
}

TEST(UnitTraffic, UnitsThatStayAreGatheredOnceAStep) {
  struct Trained {
    std::vector<Tensor> shares;
    std::ptrdiff_t gathers;
    int most_live;
  };
  run_threads(3, [](const Communicator& world) {
    for (const std::vector<ModelUse>& order : {network(5), network_in_halves(5), network_in_turns(5)}) {
      for (const bool overlap : {true, false}) {
        const auto trained = [&](bool stay, int prefetch, bool learns) {
          IntegerModel model(world, {.prefetch = prefetch, .overlap = overlap, .microbatches = 3, .keep_through_step = stay},
                             order, 5);
          if (learns) model.learn();
          if (!learns) model.step();
          const std::uint64_t since = world.job().ledger().next_sequence();
          model.step();
          const auto records = world.job().ledger().records(since);
          if (learns) model.step();
          EXPECT_EQ(model.fault(), "");
          EXPECT_EQ(model.traffic().live(), 0) << "between steps";
          return Trained{model.shares(), std::ranges::count(records, "parameters", &Record::tag), model.most_live()};
        };
        for (const int prefetch : {0, 1, 3}) {
          for (const bool learns : {true, false}) {
            const Trained kept = trained(true, prefetch, learns);
            const Trained left = trained(false, prefetch, learns);
            EXPECT_TRUE(same_bits(kept.shares, left.shares));
            EXPECT_EQ(kept.gathers, 5);
            EXPECT_EQ(kept.most_live, 5);
            EXPECT_GT(left.gathers, 3 * 5) << "the control: units that leave";
          }
        }
      }
    }
  });
}

// The number of elements of the units that were summed, in the order in which their last sums began.
std::vector<std::int64_t> sums_of_a_step(const Communicator& world, IntegerModel& model) {
  const std::uint64_t since = world.job().ledger().next_sequence();
  model.step();
  std::vector<std::int64_t> counts;
  for (const Record& record : world.job().ledger().records(since)) {
    if (record.tag == "gradients" && record.collective == Collective::reduce_scatter) counts.push_back(record.count);
  }
  return counts;
}

TEST(UnitTraffic, UnitsThatAreSummedLastStartBehindAllOthers) {
  run_threads(2, [](const Communicator& world) {
    for (const ZeroStage stage : {ZeroStage::none, ZeroStage::optimizer}) {
      for (const bool overlap : {true, false}) {
        for (const bool learns : {true, false}) {
          const auto made = [&](std::vector<std::size_t> last) {
            auto model = std::make_unique<IntegerModel>(
                world, ModelOptions{.stage = stage, .overlap = overlap, .summed_last = std::move(last)}, network(4), 4);
            if (learns) model->learn();
            return model;
          };
          const auto plain = made({});
          const auto late = made({2});
          for (int step = 0; step < 3; ++step) {
            std::vector<std::int64_t> order = sums_of_a_step(world, *plain);
            ASSERT_EQ(order.size(), 4U);
            EXPECT_NE(order[3], order[1]) << "units differ in size";
            // Backward comes from unit 3 to unit 0.
            std::rotate(order.begin() + 1, order.begin() + 2, order.end());
            EXPECT_EQ(sums_of_a_step(world, *late), order);
          }
          EXPECT_EQ(plain->fault() + late->fault(), "");
          EXPECT_THAT(plain->traffic().forward_order(), testing::ElementsAre(0, 1, 2, 3));
          EXPECT_THAT(late->traffic().forward_order(), testing::ElementsAre(2, 0, 1, 3));
          EXPECT_TRUE(same_bits(plain->shares(), late->shares()));
        }
      }
    }
  });
}

// Such as the table that the first and the last stage of a pipeline share.
TEST(UnitTraffic, RanksMayUseUnitsThatAreSummedLastInOrdersOfTheirOwn) {
  for (const ZeroStage stage : {ZeroStage::none, ZeroStage::optimizer}) {
    for (const bool overlap : {true, false}) {
      run_threads(2, [&](const Communicator& world) {
        std::vector<ModelUse> order;
        for (const Pass pass : {Pass::forward, Pass::backward}) {
          const bool first = (world.rank() == 0) == (pass == Pass::forward);
          if (first) order.push_back({0, pass});
          order.push_back({1, pass});
          order.push_back({2, pass});
          if (!first) order.push_back({0, pass});
        }
        IntegerModel model(world, {.stage = stage, .overlap = overlap, .microbatches = 3, .summed_last = {0}}, order, 3);
        if (overlap) model.learn();
        for (int step = 0; step < 4; ++step) model.step();
        EXPECT_EQ(model.fault(), "");
        model.spoil();
        model.step();
        EXPECT_NE(model.fault(), "") << "the control";
      });
    }
  }
}

TEST(UnitTraffic, UnsetGradientsOfUnitsThatAreNotUsedBecomeZeros) {
  run_threads(2, [](const Communicator& world) {
    for (const ZeroStage stage : {ZeroStage::none, ZeroStage::optimizer}) {
      ShardedUnit unit(world, world, {{6}}, DType::f32, DType::f32, {.stage = stage, .overwritten = {true}});
      unit.gradients()[0].set(1, 5);
      UnitTraffic traffic({&unit}, Stream::inline_(), Stream::inline_());
      traffic.begin_step();
      EXPECT_TRUE(*unit.unset(0));
      EXPECT_EQ(unit.gradients()[0].at(1), 5) << "the control";
      traffic.finish_sums();
      EXPECT_FALSE(*unit.unset(0));
      EXPECT_EQ(unit.gradients()[0].at(1), 0);
    }
  });
}

TEST(UnitTraffic, SumsNoUnitLastWhoseGradientsLeave) {
  run_threads(2, [](const Communicator& world) {
    for (const ZeroStage stage : {ZeroStage::gradients, ZeroStage::values}) {
      EXPECT_THAT(sentence_of([&] { const IntegerModel model(world, {.stage = stage, .summed_last = {1}}, network(3), 3); }),
                  testing::HasSubstr("Unit 1 of 3 cannot be summed last"));
    }
    EXPECT_THAT(
        sentence_of([&] { const IntegerModel model(world, {.stage = ZeroStage::none, .summed_last = {3}}, network(3), 3); }),
        testing::HasSubstr("Unit 3 of 3 cannot be summed last"));
  });
}

TEST(UnitTraffic, SaysWhichUseWasExpected) {
  run_threads(2, [](const Communicator& world) {
    using testing::HasSubstr;
    IntegerModel model(world, {.microbatches = 1}, network(3), 3);
    UnitTraffic& traffic = model.traffic();
    EXPECT_THAT(sentence_of([&] { traffic.finish_sums(); }), HasSubstr("has not begun"));
    EXPECT_THAT(sentence_of([&] { traffic.end_use(1); }), HasSubstr("Unit 1 of 3 is not in use"));
    EXPECT_THAT(sentence_of([&] { traffic.begin_use(3, Pass::forward); }), HasSubstr("no unit 3"));
    model.step();
    traffic.begin_step();
    EXPECT_THAT(sentence_of([&] { traffic.begin_step(); }), HasSubstr("begun already"));
    EXPECT_THAT(sentence_of([&] { traffic.begin_use(1, Pass::forward); }), HasSubstr("where unit 0 for forward comes"));
    EXPECT_THAT(sentence_of([&] { traffic.begin_use(0, Pass::backward_weight); }),
                HasSubstr("Unit 0 is used for backward_weight as number 0"));
  });
  run_threads(2, [](const Communicator& world) {
    IntegerModel model(world, {.microbatches = 1}, network(3), 3);
    model.step();
    model.traffic().begin_step();
    model.traffic().begin_use(0, Pass::forward);
    EXPECT_THAT(sentence_of([&] { model.traffic().finish_sums(); }), testing::HasSubstr("Unit 0 is still in use"));
    model.traffic().end_use(0);
    EXPECT_THAT(sentence_of([&] { model.traffic().finish_sums(); }), testing::HasSubstr("after 1 uses"));
    EXPECT_THAT(sentence_of([] { UnitTraffic({}, Stream::inline_(), Stream::inline_(), {.prefetch = -1}); }),
                testing::HasSubstr("-1 units ahead"));
  });
}

}  // namespace
}  // namespace stretto
