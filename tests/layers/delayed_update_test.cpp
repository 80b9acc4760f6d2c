// Updates that run behind computation: told by gates instead of clocks. Their bits: parity/delay_in_files_test.cpp.
#include "stretto/layers/delayed_update.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <future>

#include "support/error.hpp"
#include "support/temporary_directory.hpp"
#include "two_parameters.hpp"

namespace stretto {
namespace {

// Adds gradients to the values, when its gate is open.
class GatedOptimizer final : public Optimizer {
 public:
  explicit GatedOptimizer(ShardedParameters& parameters) : Optimizer(parameters, {.name = "gated", .slots = {}}) {}
  std::promise<void> opens;
  std::shared_future<void> opened = opens.get_future().share();

 private:
  void update(const ShardedParameters::Range& range, const Parameter&, const State& state, const Step& step) override {
    opened.wait();
    for (std::int64_t i = 0; i < range.count; ++i) {
      range.value.set(i, state.master.at(i) + step.gradient_scale * range.gradient.at(i));
    }
  }
};

ShardedParameters::Options behind(const std::string& directory) {
  return {.zero = ZeroStage::none, .dtype = DType::f64, .delay = 1, .offload = {.optimizer = {directory}}};
}

double sum_of_values(const ShardedParameters& sharded) {
  double sum = 0;
  for (const ShardedParameters::Range& range : sharded.ranges()) {
    for (std::int64_t i = 0; i < range.count; ++i) sum += range.value.at(i);
  }
  return sum;
}

// 49 elements, all gradients 1 and then 2.
class DelayedUpdates : public testing::Test {
 protected:
  void with(const std::function<void(ShardedParameters&, GatedOptimizer&, const std::function<void(double)>& step)>& body) {
    run_threads(1, [&](const Communicator& world) {
      const Mesh mesh(world, {});
      Parameters parameters;
      add_parameters(parameters, mesh);
      ShardedParameters sharded(parameters, mesh, behind(directory_.path()));
      GatedOptimizer optimizer(sharded);
      body(sharded, optimizer, [&](double value) {
        sum_gradients(sharded, parameters, [&](const std::string&, std::int64_t) { return value; });
      });
    });
  }
  const TemporaryDirectory directory_;
};

TEST_F(DelayedUpdates, LeaveTheValuesAloneUntilTheyAreShown) {
  with([](ShardedParameters& sharded, GatedOptimizer& optimizer, const std::function<void(double)>& step) {
    DelayedUpdate update(sharded, optimizer);
    step(1);
    step(2);  // the gradients of 1 are those that an update takes now
    update.begin(0, [](double norm) { return norm; });
    EXPECT_EQ(sum_of_values(sharded), 0) << "the update waits for its gate";
    optimizer.opens.set_value();
    EXPECT_EQ(update.finish(), 7) << "sqrt(49)";
    EXPECT_EQ(sum_of_values(sharded), 0) << "until they are shown";
    EXPECT_EQ(optimizer.steps(), 0);
    update.show();
    EXPECT_EQ(sum_of_values(sharded), 49 * 7);
    EXPECT_EQ(optimizer.steps(), 1);
  });
}

TEST_F(DelayedUpdates, AreLeftOutIfTheNormSaysSo) {
  with([](ShardedParameters& sharded, GatedOptimizer& optimizer, const std::function<void(double)>& step) {
    DelayedUpdate update(sharded, optimizer);
    step(1);
    step(2);
    update.begin(0, [](double) { return std::optional<double>(); });
    EXPECT_EQ(update.finish(), 7) << "though the gate is closed";
    EXPECT_EQ(optimizer.steps(), 0);
    EXPECT_THROW(update.show(), Error);
    optimizer.opens.set_value();
  });
}

TEST_F(DelayedUpdates, TellWhatFailsInThem) {
  with([](ShardedParameters& sharded, GatedOptimizer& optimizer, const std::function<void(double)>& step) {
    DelayedUpdate update(sharded, optimizer);
    step(1);
    step(2);
    update.begin(0, [](double) -> std::optional<double> { throw std::runtime_error("no scale"); });
    EXPECT_THROW(update.finish(), std::runtime_error);
    optimizer.opens.set_value();
  });
}

TEST_F(DelayedUpdates, NeedADelayAndADirectory) {
  run_threads(1, [&](const Communicator& world) {
    const Mesh mesh(world, {});
    Parameters parameters;
    add_parameters(parameters, mesh);
    ShardedParameters::Options options = behind(directory_.path());
    options.delay = 0;
    ShardedParameters sharded(parameters, mesh, options);
    GatedOptimizer optimizer(sharded);
    EXPECT_THROW(DelayedUpdate(sharded, optimizer), Error);
  });
}

}  // namespace
}  // namespace stretto
