// Stores of one's own under UnitTraffic: what they are told, and units that are used in no fixed order.
#include "stretto/overlap/unit_store.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "stretto/overlap/sharded_unit.hpp"
#include "stretto/overlap/unit_traffic.hpp"
#include "stretto/stretto.hpp"
#include "support/error.hpp"

namespace stretto {
namespace {

struct NotedOptions {
  ZeroStage stage = ZeroStage::values;
  bool ordered = false;
  bool forgets_sums = false;  // the control
};

// A unit in memory that notes what is asked of it.
class NotedUnit final : public ShardedUnit {
 public:
  NotedUnit(const Communicator& gathers, const Communicator& sums, std::size_t number, const NotedOptions& how,
            std::vector<std::string>& calls)
      : ShardedUnit(gathers, sums, {{static_cast<std::int64_t>(5 + number)}}, DType::f64, DType::f64,
                    Options{.stage = how.stage}),
        number_(number),
        how_(how),
        calls_(calls) {}
  bool ordered() const override { return how_.ordered; }
  void used_for(Pass pass, int microbatch) override { note(std::string(name(pass)) + " " + std::to_string(microbatch)); }
  Work gather(const Stream& stream) override {
    note("gather");
    return ShardedUnit::gather(stream);
  }
  void release() override {
    note("release");
    ShardedUnit::release();
  }
  Work sum(const Stream& stream) override {
    note("sum");
    if (!how_.forgets_sums) return ShardedUnit::sum(stream);
    discard_gradients();
    return {};
  }

 private:
  void note(const std::string& call) { calls_.push_back(std::to_string(number_) + " " + call); }
  std::size_t number_;
  NotedOptions how_;
  std::vector<std::string>& calls_;
};

struct NotedUse {
  std::size_t unit;
  Pass pass;
};

// Units whose values are all equal. Rank r adds (r + 1) (microbatch + 1) to the gradients in each use that adds any.
class NotedModel {
 public:
  NotedModel(const Communicator& world, const std::vector<NotedOptions>& units, bool overlap = true)
      : world_(world), expected_(units.size(), 0) {
    const Communicator gathers = world.duplicate("gathers");
    std::vector<UnitStore*> stores;
    for (const NotedOptions& how : units) {
      units_.push_back(std::make_unique<NotedUnit>(gathers, world, units_.size(), how, calls));
      stores.push_back(units_.back().get());
    }
    traffic = std::make_unique<UnitTraffic>(stores, Stream("gathers"), Stream("sums"),
                                            UnitTraffic::Options{.prefetch = 1, .overlap = overlap});
    traffic->set_whole(std::vector<bool>(units.size(), false));
  }

  void use(const NotedUse& use, int microbatch) {
    traffic->begin_use(use.unit, use.pass, microbatch);
    NotedUnit& unit = *units_[use.unit];
    if (reads_values(use.pass)) {
      for (std::int64_t i = 0; i < unit.elements(); ++i) right = right && unit.values()[0].at(i) == expected_[use.unit];
    }
    if (adds_gradients(use.pass)) {
      const Tensor& gradient = unit.gradients()[0];
      for (std::int64_t i = 0; i < unit.elements(); ++i) {
        gradient.set(i, gradient.at(i) + (world_.rank() + 1) * (microbatch + 1));
      }
    }
    traffic->end_use(use.unit);
  }
  // uses[rank][microbatch]
  void step(const std::vector<std::vector<std::vector<NotedUse>>>& uses) {
    traffic->begin_step();
    const auto& own = uses[static_cast<std::size_t>(world_.rank())];
    for (std::size_t m = 0; m < own.size(); ++m) {
      for (const NotedUse& each : own[m]) use(each, static_cast<int>(m));
      traffic->end_microbatch();
    }
    traffic->finish_sums();
    for (std::size_t rank = 0; rank < uses.size(); ++rank) {
      for (std::size_t m = 0; m < uses[rank].size(); ++m) {
        for (const NotedUse& each : uses[rank][m]) {
          if (adds_gradients(each.pass)) expected_[each.unit] += static_cast<double>((rank + 1) * (m + 1));
        }
      }
    }
    for (const std::size_t unit : traffic->forward_order()) {
      const Tensor& share = units_[unit]->share();
      for (std::int64_t i = 0; i < share.size(); ++i) share.set(i, share.at(i) + units_[unit]->gradient_share().at(i));
      traffic->updated(unit);
    }
  }

  bool right = true;
  std::vector<std::string> calls;
  std::unique_ptr<UnitTraffic> traffic;

 private:
  Communicator world_;
  std::vector<double> expected_;
  std::vector<std::unique_ptr<NotedUnit>> units_;
};

TEST(UnitStore, IsToldForWhichUseItIsGathered) {
  run_threads(2, [](const Communicator& world) {
    const std::vector<NotedUse> order = {{0, Pass::forward}, {1, Pass::forward}, {1, Pass::backward}, {0, Pass::backward}};
    const auto calls_of_a_step = [&](bool ordered) {
      NotedModel model(world, {{.ordered = ordered}, {.ordered = ordered}});
      model.step({{{}, order}, {{}, order}});
      model.calls.clear();
      model.step({{{}, order}, {{}, order}});
      EXPECT_TRUE(model.right);
      return model.calls;
    };
    using testing::ElementsAre;
    EXPECT_THAT(calls_of_a_step(true), ElementsAre("0 forward 1", "0 gather", "0 forward 1", "1 forward 1", "1 gather",
                                                   "0 release", "1 forward 1", "0 backward 1", "0 gather", "1 backward 1",
                                                   "1 sum", "1 release", "0 backward 1", "0 sum", "0 release"));
    EXPECT_THAT(calls_of_a_step(false),
                ElementsAre("0 sum", "1 sum",  // of a microbatch that uses nothing
                            "0 forward 1", "0 gather", "0 release", "1 forward 1", "1 gather", "1 release", "1 backward 1",
                            "1 gather", "1 release", "0 backward 1", "0 gather", "0 release", "0 sum", "1 sum"));
  });
}

// Unit 0 begins and ends the microbatch; others come as chance has it, or not at all.
std::vector<NotedUse> drawn_uses(std::uint64_t seed, std::size_t units) {
  std::mt19937_64 random(seed);
  std::vector<NotedUse> uses = {{0, Pass::forward}};
  for (std::uint64_t i = random() % 9; i > 0; --i) uses.push_back({1 + random() % (units - 1), Pass(random() % 4)});
  uses.push_back({0, Pass::backward});
  return uses;
}

// Where uses gather, ranks make the same ones; else each rank makes its own.
TEST(UnitStore, UnitsMayBeUsedInNoFixedOrder) {
  constexpr std::size_t units = 4;
  constexpr int ranks = 3;
  for (const ZeroStage stage : zero_stages) {
    for (const bool overlap : {true, false}) {
      for (const bool learns : {true, false}) {
        run_threads(ranks, [&](const Communicator& world) {
          const auto train = [&](bool forgets_sums) {
            std::vector<NotedOptions> how(units, {.stage = stage});
            how[0].ordered = true;
            how[2].forgets_sums = forgets_sums;
            NotedModel model(world, how, overlap);
            const auto uses_of = [&](int step) {
              std::vector<std::vector<std::vector<NotedUse>>> uses(ranks);
              for (std::uint64_t rank = 0; rank < ranks; ++rank) {
                for (std::uint64_t m = 0; m < 2; ++m) {
                  const std::uint64_t own = stage == ZeroStage::values ? 0 : 100 * rank;
                  uses[rank].push_back(drawn_uses(own + 2 * static_cast<std::uint64_t>(step) + m, units));
                }
              }
              return uses;
            };
            if (learns) {
              model.traffic->learn([&] {
                for (int m = 0; m < 2; ++m) {
                  for (const NotedUse& use : drawn_uses(1000 + static_cast<std::uint64_t>(m), units)) {
                    model.traffic->begin_use(use.unit, use.pass, m);
                    model.traffic->end_use(use.unit);
                  }
                  model.traffic->end_microbatch();
                }
              });
            }
            for (int step = 0; step < 6; ++step) model.step(uses_of(step));
            model.traffic->wait_for_values();
            return model.right;
          };
          EXPECT_TRUE(train(false));
          EXPECT_FALSE(train(true)) << "the control";
        });
      }
    }
  }
}

TEST(UnitStore, GradientsOfUnorderedUnitsAreAddedWithinMicrobatches) {
  run_threads(2, [](const Communicator& world) {
    NotedModel model(world, {{.stage = ZeroStage::gradients}});
    model.traffic->begin_step();
    model.use({0, Pass::backward}, 0);
    EXPECT_THAT(sentence_of([&] { model.traffic->finish_sums(); }), testing::HasSubstr("end_microbatch()"));
  });
}

}  // namespace
}  // namespace stretto
