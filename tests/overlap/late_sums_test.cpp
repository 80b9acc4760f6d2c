// Sums that arrive one step late: when UnitTraffic waits for them, told by gates instead of clocks.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <thread>

#include "stretto/overlap/sharded_unit.hpp"
#include "stretto/overlap/unit_traffic.hpp"
#include "stretto/stretto.hpp"

namespace stretto {
namespace {

// A sum that ends when its gate is opened.
struct Gate {
  std::promise<void> opens;
  std::shared_future<void> opened = opens.get_future().share();
  std::atomic<bool> done = false;
};

class GatedUnit final : public ShardedUnit {
 public:
  GatedUnit(const Communicator& world, bool has_two_sets)
      : ShardedUnit(world, world, {{5}}, DType::f64, DType::f64, Options{.has_earlier_gradients = has_two_sets}) {}
  Work sum(const Stream& stream) override {
    Gate& gate = gates.at(step_++);
    return stream.enqueue([&gate] {
      gate.opened.wait();
      gate.done = true;
    });
  }
  std::array<Gate, 2> gates;  // by step

 private:
  std::size_t step_ = 0;
};

class LateSums : public testing::Test {
 protected:
  // On one rank: `compute` makes a step but for its finish_sums().
  static void with(int delay, const std::function<void(GatedUnit&, UnitTraffic&, const std::function<void()>&)>& body) {
    run_threads(1, [&](const Communicator& world) {
      GatedUnit unit(world, delay > 0);
      UnitTraffic traffic({&unit}, Stream("gathers"), Stream("sums"), {.delay = delay});
      body(unit, traffic, [&] {
        if (delay > 0) unit.exchange_gradients();
        traffic.begin_step();
        for (const Pass pass : {Pass::forward, Pass::backward}) {
          traffic.begin_use(0, pass);
          traffic.end_use(0);
        }
        traffic.end_microbatch();
      });
    });
  }
};

TEST_F(LateSums, AreWaitedForByTheNextStep) {
  with(1, [](GatedUnit& unit, UnitTraffic& traffic, const std::function<void()>& compute) {
    compute();
    traffic.finish_sums();  // would never return if it waited for its own
    compute();
    EXPECT_FALSE(unit.gates[0].done);
    unit.gates[0].opens.set_value();
    traffic.finish_sums();
    EXPECT_TRUE(unit.gates[0].done);
    EXPECT_FALSE(unit.gates[1].done);
    unit.gates[1].opens.set_value();
    traffic.wait_for_sums();
    EXPECT_TRUE(unit.gates[1].done);
  });
}

TEST_F(LateSums, ControlWaitsInItsOwnStepWithoutADelay) {
  with(0, [](GatedUnit& unit, UnitTraffic& traffic, const std::function<void()>& compute) {
    compute();
    std::thread opener([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      unit.gates.front().opens.set_value();
    });
    traffic.finish_sums();
    EXPECT_TRUE(unit.gates.front().done);
    opener.join();
  });
}

TEST_F(LateSums, GradientsOfTwoStepsLieApart) {
  run_threads(1, [](const Communicator& world) {
    GatedUnit unit(world, true);
    unit.gradients()[0].set(0, 7);
    unit.exchange_gradients();
    EXPECT_EQ(unit.earlier_gradient_share().at(0), 7);
    EXPECT_EQ(unit.gradients()[0].at(0), 0);
    unit.exchange_gradients();
    EXPECT_EQ(unit.gradients()[0].at(0), 7);
  });
}

// A stream that waits for them runs on when they are done, and the thread that computes does not wait.
TEST_F(LateSums, AreWaitedForByAStream) {
  with(1, [](GatedUnit& unit, UnitTraffic& traffic, const std::function<void()>& compute) {
    compute();
    traffic.finish_sums();
    compute();
    const Stream stream("behind");
    traffic.wait_for_late_sums(stream);
    std::atomic<bool> was_done = false;
    const Work work = stream.enqueue([&] { was_done = unit.gates[0].done.load(); });
    EXPECT_FALSE(work.done());
    unit.gates[0].opens.set_value();
    work.wait();
    EXPECT_TRUE(was_done);
    traffic.finish_sums();
    unit.gates[1].opens.set_value();
  });
}

TEST_F(LateSums, AreOneStepLateAtMost) {
  run_threads(1, [](const Communicator& world) {
    ShardedUnit unit(world, world, {{5}}, DType::f64, DType::f64);
    EXPECT_THROW(UnitTraffic({&unit}, computation(), computation(), {.delay = 2}), Error);
  });
}

}  // namespace
}  // namespace stretto
