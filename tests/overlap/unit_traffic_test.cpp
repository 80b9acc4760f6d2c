// Training steps of a model whose values are integers: every use must find the values of its step, at every ZeRO stage, with
// and without overlap.
#include "stretto/overlap/unit_traffic.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "same_bits.hpp"
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
  bool keep_through_step = false;
  std::vector<std::size_t> summed_last = {};
};

struct Use {
  std::size_t unit;
  Pass pass;
  int inside = 0;  // so many of the following uses lie within this one
};

// Units of different sizes over all ranks. In every step each use in `order` checks the values if it reads them, and adds to
// the gradients if it adds any; then every owner adds the sum of the gradients to its values. All are integers, so sums are
// exact.
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
                                      UnitTraffic::Options{.prefetch = how.prefetch,
                                                           .overlap = how.overlap,
                                                           .keep_through_step = how.keep_through_step,
                                                           .summed_last = how.summed_last});
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
      for (std::size_t i = 0; i < order_.size();) i = use(i, microbatch);
      for (const Use& use : order_) {
        if (adds_gradients(use.pass)) added[use.unit] += world_.size() * (microbatch + 1);
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

  void use(const Use& use, int microbatch, const std::function<void()>& inside = nullptr) {
    traffic_->begin_use(use.unit, use.pass);
    most_live_ = std::max(most_live_, traffic_->live());
    if (!reads_values(use.pass)) most_live_unread_ = std::max(most_live_unread_, traffic_->live());
    if (inside) inside();
    if (reads_values(use.pass)) check(use.unit);
    if (adds_gradients(use.pass)) {
      for (const Tensor& gradient : units_[use.unit]->gradients()) {
        for (std::int64_t i = 0; i < gradient.size(); ++i) gradient.set(i, gradient.at(i) + microbatch + 1);
      }
    }
    traffic_->end_use(use.unit);
  }

  UnitTraffic& traffic() { return *traffic_; }
  const ShardedUnit& unit(std::size_t i) const { return *units_[i]; }
  std::vector<Tensor> shares() const {
    std::vector<Tensor> all;
    for (const auto& unit : units_) all.push_back(unit->share().clone());
    return all;
  }
  int most_live() const { return most_live_; }
  int most_live_unread() const { return most_live_unread_; }  // in uses that read no values
  const std::string& fault() const { return fault_; }
  void spoil() { expected_[0][0] += 1; }

 private:
  // Returns the number of the next use that does not lie within this one.
  std::size_t use(std::size_t i, int microbatch) {
    const Use& outer = order_[i++];
    use(outer, microbatch, [&] {
      for (int n = 0; n < outer.inside && i < order_.size(); ++n) i = use(i, microbatch);
    });
    return i;
  }
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
  int most_live_ = 0, most_live_unread_ = 0;
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

// The same with a backward in halves: the gradients of all inputs, and then those of the weights.
std::vector<Use> network_in_halves(std::size_t units) {
  std::vector<Use> order, weights;
  for (const Use& use : network(units)) {
    if (use.pass == Pass::forward) {
      order.push_back(use);
    } else {
      order.push_back({use.unit, Pass::backward_input});
      weights.push_back({use.unit, Pass::backward_weight});
    }
  }
  order.insert(order.end(), weights.begin(), weights.end());
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
    for (int i = 0; i < 12; ++i) {
      const std::size_t unit = random() % 4;
      const auto pass = static_cast<Pass>(random() % 4);
      order.push_back({unit, pass, random() % 3 == 0 ? static_cast<int>(random() % 3) : 0});
    }
    run_threads(2, [&](const Communicator& world) {
      const How how{.stage = GetParam(), .prefetch = static_cast<int>(seed % 3), .keep_through_step = seed % 2 == 1};
      Model model(world, how, order, 4);
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

TEST_P(EveryStage, HalvesOfBackwardGiveTheBitsOfTheWhole) {
  for (const int prefetch : {0, 1, 3}) {
    for (const int microbatches : {1, 3}) {
      run_threads(2, [&](const Communicator& world) {
        const auto trained = [&](const std::vector<Use>& order) {
          Model model(world, {.stage = GetParam(), .prefetch = prefetch, .microbatches = microbatches}, order, 5);
          for (int step = 0; step < 3; ++step) model.step();
          EXPECT_EQ(model.fault(), "");
          return model.shares();
        };
        const std::vector<Tensor> whole = trained(network(5));
        std::vector<Use> halves = network_in_halves(5);
        EXPECT_TRUE(same_bits(trained(halves), whole));
        halves.pop_back();
        EXPECT_FALSE(same_bits(trained(halves), whole)) << "the control: a weight gradient is missing";
      });
    }
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
    const auto gathers = [&](ZeroStage stage, int microbatches, const std::vector<Use>& order = network(6)) {
      Model model(world, {.stage = stage, .microbatches = microbatches}, order, 6);
      model.step();
      const std::uint64_t since = world.ledger().next_sequence();
      model.step();
      return std::ranges::count(world.ledger().records(since), "parameters", &Record::tag);
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
    Model model(world, {.stage = ZeroStage::values, .microbatches = 1}, network_in_halves(4), 4);
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
    Model model(world, {.stage = ZeroStage::values, .microbatches = 1},
                {{0, Pass::forward}, {1, Pass::backward_weight}, {0, Pass::forward}, {1, Pass::forward}}, 2);
    model.step();
    const std::uint64_t since = world.ledger().next_sequence();
    model.step();
    EXPECT_EQ(std::ranges::count(world.ledger().records(since), "parameters", &Record::tag), 2);
    EXPECT_EQ(model.fault(), "");
  });
}

// Two microbatches of a pipeline: forwards of both, and then their backwards.
std::vector<Use> network_in_turns(std::size_t units) {
  std::vector<Use> order;
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
    for (const std::vector<Use>& order : {network(5), network_in_halves(5), network_in_turns(5)}) {
      for (const bool overlap : {true, false}) {
        const auto trained = [&](bool stay, int prefetch, bool learns) {
          Model model(world, {.prefetch = prefetch, .overlap = overlap, .microbatches = 3, .keep_through_step = stay}, order,
                      5);
          if (learns) model.learn();
          if (!learns) model.step();
          const std::uint64_t since = world.ledger().next_sequence();
          model.step();
          const auto records = world.ledger().records(since);
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
std::vector<std::int64_t> sums_of_a_step(const Communicator& world, Model& model) {
  const std::uint64_t since = world.ledger().next_sequence();
  model.step();
  std::vector<std::int64_t> counts;
  for (const Record& record : world.ledger().records(since)) {
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
            auto model = std::make_unique<Model>(
                world, How{.stage = stage, .overlap = overlap, .summed_last = std::move(last)}, network(4), 4);
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
        std::vector<Use> order;
        for (const Pass pass : {Pass::forward, Pass::backward}) {
          const bool first = (world.rank() == 0) == (pass == Pass::forward);
          if (first) order.push_back({0, pass});
          order.push_back({1, pass});
          order.push_back({2, pass});
          if (!first) order.push_back({0, pass});
        }
        Model model(world, {.stage = stage, .overlap = overlap, .microbatches = 3, .summed_last = {0}}, order, 3);
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

TEST(UnitTraffic, SumsNoUnitLastWhoseGradientsLeave) {
  run_threads(2, [](const Communicator& world) {
    for (const ZeroStage stage : {ZeroStage::gradients, ZeroStage::values}) {
      EXPECT_THAT(sentence_of([&] { const Model model(world, {.stage = stage, .summed_last = {1}}, network(3), 3); }),
                  testing::HasSubstr("Unit 1 of 3 cannot be summed last"));
    }
    EXPECT_THAT(
        sentence_of([&] { const Model model(world, {.stage = ZeroStage::none, .summed_last = {3}}, network(3), 3); }),
        testing::HasSubstr("Unit 3 of 3 cannot be summed last"));
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
    EXPECT_THAT(sentence_of([&] { traffic.begin_use(0, Pass::backward_weight); }),
                HasSubstr("Unit 0 is used for backward_weight as number 0"));
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
