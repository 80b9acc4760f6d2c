// Training steps of a model whose values are integers: every use must find the values of its step, at every ZeRO stage, with
// and without overlap.
#include "stretto/overlap/unit_traffic.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "stretto/stretto.hpp"
#include "variables.hpp"

namespace stretto {
namespace {

struct How {
  ZeroStage stage = ZeroStage::values;
  int prefetch = 1;
  bool overlap = true;
  int microbatches = 2;
  std::vector<bool> whole = {};  // UnitTraffic::set_whole, after the first step
};

struct Use {
  std::size_t unit;
  Pass pass;
};

// Units of different sizes over all ranks. In every step each use in `order` checks the values and, in backward, adds to the
// gradients; then every owner adds the sum of the gradients to its values. All are integers, so sums are exact.
class Model {
 public:
  Model(const Communicator& world, const How& how, std::vector<Use> order, std::size_t units)
      : world_(world), how_(how), order_(std::move(order)), expected_(units) {
    const Communicator gathers = world.duplicate("gathers");
    for (std::size_t i = 0; i < units; ++i) {
      const auto rows = static_cast<std::int64_t>(i + 3);
      expected_[i].resize(static_cast<std::size_t>(rows * 5 + 1));
      for (std::size_t k = 0; k < expected_[i].size(); ++k) expected_[i][k] = static_cast<double>(100 * i + k);
      units_.push_back(std::make_unique<ShardedUnit>(gathers, world, std::vector<Shape>{{rows, 5}, {1}}, DType::f64,
                                                     DType::f64, ShardedUnit::Options{.stage = how.stage}));
      write_share(i);
    }
    std::vector<ShardedUnit*> pointers;
    for (const auto& unit : units_) pointers.push_back(unit.get());
    traffic_ =
        std::make_unique<UnitTraffic>(pointers, Stream("gathers", Priority::urgent), Stream("sums", Priority::background),
                                      UnitTraffic::Options{.prefetch = how.prefetch, .overlap = how.overlap});
    // The first values travel like those of a step.
    for (std::size_t i = 0; i < units; ++i) {
      units_[i]->share_changed();
      if (units_[i]->has_values()) units_[i]->gather(Stream::inline_()).wait();
    }
  }

  // Learns the uses of a step before the first one, which then follows them.
  void learn() {
    const auto uses = [&] {
      for (int microbatch = 0; microbatch < how_.microbatches; ++microbatch) {
        for (const Use& use : order_) {
          traffic_->begin_use(use.unit, use.pass);
          most_live_ = std::max(most_live_, traffic_->live());
          traffic_->end_use(use.unit);
        }
        traffic_->end_microbatch();
      }
    };
    const std::uint64_t before = world_.ledger().next_sequence();
    traffic_->learn(uses);
    EXPECT_EQ(world_.ledger().next_sequence(), before) << "nothing is sent";
    EXPECT_THROW(traffic_->learn(uses), Error);
  }

  void step() {
    traffic_->begin_step();
    std::vector<double> added(units_.size(), 0);
    for (int microbatch = 0; microbatch < how_.microbatches; ++microbatch) {
      for (const Use& use : order_) {
        this->use(use, microbatch);
        if (use.pass == Pass::backward) added[use.unit] += world_.size() * (microbatch + 1);
      }
      traffic_->end_microbatch();
    }
    traffic_->finish_sums();
    for (const std::size_t unit : traffic_->forward_order()) {
      for (double& each : expected_[unit]) each += added[unit];
      update(unit);
      traffic_->updated(unit);
    }
    if (!how_.whole.empty() && steps_++ == 0) traffic_->set_whole(how_.whole);
  }

  void use(const Use& use, int microbatch) {
    traffic_->begin_use(use.unit, use.pass);
    most_live_ = std::max(most_live_, traffic_->live());
    check(use.unit);
    if (use.pass == Pass::backward) {
      for (const Tensor& gradient : units_[use.unit]->gradients()) {
        for (std::int64_t i = 0; i < gradient.size(); ++i) gradient.set(i, gradient.at(i) + microbatch + 1);
      }
    }
    traffic_->end_use(use.unit);
  }

  UnitTraffic& traffic() { return *traffic_; }
  int most_live() const { return most_live_; }
  const std::string& fault() const { return fault_; }
  void spoil() { expected_[0][0] += 1; }

 private:
  void check(std::size_t unit) {
    std::size_t k = 0;
    for (const Tensor& value : units_[unit]->values()) {
      for (std::int64_t i = 0; i < value.size(); ++i, ++k) {
        if (fault_.empty() && value.at(i) != expected_[unit][k]) {
          fault_ = "unit " + std::to_string(unit) + "[" + std::to_string(k) + "] is " + std::to_string(value.at(i)) +
                   " instead of " + std::to_string(expected_[unit][k]);
        }
      }
    }
  }
  void write_share(std::size_t unit) {
    const Tensor& share = units_[unit]->share();
    const std::int64_t begin = world_.rank() * share.size();
    for (std::int64_t i = 0; i < share.size() && begin + i < units_[unit]->elements(); ++i) {
      share.set(i, expected_[unit][static_cast<std::size_t>(begin + i)]);
    }
  }
  void update(std::size_t unit) {
    ShardedUnit& of = *units_[unit];
    if (!traffic_->is_whole(unit)) {
      for (std::int64_t i = 0; i < of.share().size(); ++i) of.share().set(i, of.share().at(i) + of.gradient_share().at(i));
      return;
    }
    for (std::size_t t = 0; t < of.values().size(); ++t) {
      const Tensor& value = of.values()[t];
      for (std::int64_t i = 0; i < value.size(); ++i) value.set(i, value.at(i) + of.gradients()[t].at(i));
    }
  }

  Communicator world_;
  How how_;
  std::vector<Use> order_;
  std::vector<std::vector<double>> expected_;  // values, by unit
  std::vector<std::unique_ptr<ShardedUnit>> units_;
  std::unique_ptr<UnitTraffic> traffic_;
  int steps_ = 0;
  int most_live_ = 0;
  std::string fault_;
};

// A network with a tied layer: unit 0 is the first and the last that forward uses.
std::vector<Use> network(std::size_t units) {
  std::vector<Use> order;
  for (std::size_t i = 0; i < units; ++i) order.push_back({i, Pass::forward});
  order.push_back({0, Pass::forward});
  order.push_back({0, Pass::backward});
  for (std::size_t i = units; i-- > 0;) order.push_back({i, Pass::backward});
  return order;
}

class EveryStage : public testing::TestWithParam<ZeroStage> {};

TEST_P(EveryStage, EveryUseFindsItsValues) {
  for (const int ranks : {1, 2, 3}) {
    for (const bool overlap : {true, false}) {
      for (const int prefetch : {0, 1, 3}) {
        for (const int microbatches : {1, 3}) {
          run_threads(ranks, [&](const Communicator& world) {
            Model model(world, {GetParam(), prefetch, overlap, microbatches}, network(5), 5);
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
    Model model(world, {.stage = GetParam()}, network(5), 5);
    for (int step = 0; step < 4; ++step) model.step();
    EXPECT_EQ(model.fault(), "");
  });
}

// Any order of uses, also such that begin and end in each other, is learned.
TEST_P(EveryStage, RandomOrders) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    std::vector<Use> order;
    for (int i = 0; i < 12; ++i) order.push_back({random() % 4, random() % 2 == 0 ? Pass::forward : Pass::backward});
    run_threads(2, [&](const Communicator& world) {
      Model model(world, {.stage = GetParam(), .prefetch = static_cast<int>(seed % 3)}, order, 4);
      for (int step = 0; step < 3; ++step) model.step();
      EXPECT_EQ(model.fault(), "") << seed;
    });
  }
}

TEST_P(EveryStage, UsesOutsideAStepFindTheValuesToo) {
  run_threads(2, [&](const Communicator& world) {
    Model model(world, {.stage = GetParam()}, network(4), 4);
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
      Model model(world, {.stage = GetParam(), .microbatches = microbatches}, network(5), 5);
      model.learn();
      const auto gathers = [&] {
        const std::uint64_t since = world.ledger().next_sequence();
        model.step();
        return std::ranges::count(world.ledger().records(since), "parameters", &Record::tag);
      };
      const auto first = gathers();
      EXPECT_EQ(gathers(), first);
      EXPECT_EQ(model.fault(), "");
      EXPECT_EQ(model.most_live(), GetParam() == ZeroStage::values ? 2 : 5) << "in no step more than in others";
    });
  }
}

INSTANTIATE_TEST_SUITE_P(All, EveryStage, testing::ValuesIn(zero_stages),
                         [](const auto& stage) { return "zero" + std::to_string(static_cast<int>(stage.param)); });

TEST(UnitTraffic, UnitsThatAreNotWholeAreUpdatedByShare) {
  run_threads(3, [](const Communicator& world) {
    Model model(world, {.stage = ZeroStage::none, .whole = {true, false, true, false}}, network(4), 4);
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
      Model model(world, {.prefetch = prefetch}, network(6), 6);
      for (int step = 0; step < 3; ++step) model.step();
      EXPECT_EQ(model.most_live(), 1 + prefetch);
    }
  });
}

// A step's gathers: each unit once for forward and once for backward, but those that stay in between.
TEST(UnitTraffic, GathersWhatLeavesAndNothingElse) {
  run_threads(2, [](const Communicator& world) {
    const auto gathers = [&](ZeroStage stage, int microbatches) {
      Model model(world, {.stage = stage, .microbatches = microbatches}, network(6), 6);
      model.step();
      const std::uint64_t since = world.ledger().next_sequence();
      model.step();
      return std::ranges::count(world.ledger().records(since), "parameters", &Record::tag);
    };
    // Forward gathers 0 to 5 and 0 again. This 0 stays for the first use of backward, which gathers 5 to 0.
    EXPECT_EQ(gathers(ZeroStage::values, 1), 7 + 6);
    EXPECT_EQ(gathers(ZeroStage::values, 2), 2 * (7 + 6) - 1) << "the last 0 stays for the next microbatch";
    EXPECT_EQ(gathers(ZeroStage::optimizer, 1), 6);
    EXPECT_EQ(gathers(ZeroStage::optimizer, 3), 6);
    EXPECT_EQ(gathers(ZeroStage::none, 1), 0);
  });
}

TEST(UnitTraffic, SaysWhichUseWasExpected) {
  run_threads(2, [](const Communicator& world) {
    using testing::HasSubstr;
    Model model(world, {.microbatches = 1}, network(3), 3);
    UnitTraffic& traffic = model.traffic();
    EXPECT_THAT(sentence_of([&] { traffic.finish_sums(); }), HasSubstr("has not begun"));
    EXPECT_THAT(sentence_of([&] { traffic.end_use(1); }), HasSubstr("Unit 1 of 3 is not in use"));
    EXPECT_THAT(sentence_of([&] { traffic.begin_use(3, Pass::forward); }), HasSubstr("no unit 3"));
    model.step();
    traffic.begin_step();
    EXPECT_THAT(sentence_of([&] { traffic.begin_step(); }), HasSubstr("begun already"));
    EXPECT_THAT(sentence_of([&] { traffic.begin_use(1, Pass::forward); }), HasSubstr("where unit 0 for forward comes"));
  });
  run_threads(2, [](const Communicator& world) {
    Model model(world, {.microbatches = 1}, network(3), 3);
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
