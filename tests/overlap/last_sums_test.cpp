// When a unit's last sum of a step begins, and who is told.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "stretto/overlap/sharded_unit.hpp"
#include "stretto/overlap/unit_traffic.hpp"
#include "stretto/stretto.hpp"

namespace stretto {
namespace {

TEST(LastSums, AreToldOnceAStepInTheirOrder) {
  for (const ZeroStage stage : zero_stages) {
    for (const int ranks : {1, 2}) {
      run_threads(ranks, [&](const Communicator& world) {
        std::vector<std::unique_ptr<ShardedUnit>> units;
        std::vector<UnitStore*> stores;
        for (int i = 0; i < 3; ++i) {
          units.push_back(std::make_unique<ShardedUnit>(world, world, std::vector<Shape>{{5}}, DType::f64, DType::f64,
                                                        ShardedUnit::Options{.stage = stage}));
          stores.push_back(units.back().get());
        }
        UnitTraffic traffic(stores, computation(), computation());
        std::vector<std::size_t> told;
        traffic.on_last_sum([&](std::size_t unit) { told.push_back(unit); });
        const auto use = [&](std::size_t unit, Pass pass, int microbatch) {
          traffic.begin_use(unit, pass, microbatch);
          if (adds_gradients(pass)) units[unit]->gradients()[0].set(0, units[unit]->gradients()[0].at(0) + 1);
          traffic.end_use(unit);
        };
        for (int step = 0; step < 3; ++step) {
          told.clear();
          traffic.begin_step();
          for (const int microbatch : {0, 1}) {
            for (const std::size_t unit : {0, 1, 2}) use(unit, Pass::forward, microbatch);
            for (const std::size_t unit : {2, 0, 1}) use(unit, Pass::backward, microbatch);
            traffic.end_microbatch();
            if (microbatch == 0) {
              EXPECT_TRUE(told.empty()) << "other microbatches follow";
            }
          }
          const std::vector<std::size_t> order = {2, 0, 1};
          EXPECT_EQ(told, step == 0 ? std::vector<std::size_t>() : order) << "the first step learns";
          traffic.finish_sums();
          EXPECT_EQ(traffic.sum_order(), order);
        }
        const Stream stream("behind");
        traffic.wait_for_sum(1, stream);
        stream.enqueue([&] { EXPECT_EQ(units[1]->gradient_share().at(0), world.rank() == 0 ? 2 * ranks : 0); }).wait();
      });
    }
  }
}

// A sum begins where the use ends: of two nested uses, that of the inner one comes first.
TEST(LastSums, OfNestedUsesComeInTheOrderOfTheirEnds) {
  run_threads(1, [](const Communicator& world) {
    std::vector<std::unique_ptr<ShardedUnit>> units;
    std::vector<UnitStore*> stores;
    for (int i = 0; i < 3; ++i) {
      units.push_back(std::make_unique<ShardedUnit>(world, world, std::vector<Shape>{{5}}, DType::f64, DType::f64,
                                                    ShardedUnit::Options()));
      stores.push_back(units.back().get());
    }
    UnitTraffic traffic(stores, computation(), computation());
    std::vector<std::size_t> told;
    traffic.on_last_sum([&](std::size_t unit) { told.push_back(unit); });
    EXPECT_THROW(traffic.on_last_sum([](std::size_t) {}), Error);
    for (int step = 0; step < 2; ++step) {
      traffic.begin_step();
      for (const std::size_t unit : {0, 1, 2}) {
        traffic.begin_use(unit, Pass::forward);
        traffic.end_use(unit);
      }
      for (const std::size_t unit : {2, 0}) traffic.begin_use(unit, Pass::backward);
      for (const std::size_t unit : {0, 2}) traffic.end_use(unit);
      traffic.begin_use(1, Pass::backward);
      traffic.end_use(1);
      traffic.end_microbatch();
      traffic.finish_sums();
      EXPECT_EQ(traffic.sum_order(), (std::vector<std::size_t>{0, 2, 1}));
    }
    EXPECT_EQ(told, traffic.sum_order());
  });
}

}  // namespace
}  // namespace stretto
