#include "stretto/layers/loss_scale.hpp"

#include <gtest/gtest.h>

#include <limits>

#include "stretto/layers/optimizer.hpp"
#include "stretto/stretto.hpp"

namespace stretto {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double no_number = std::numeric_limits<double>::quiet_NaN();

TEST(LossScale, HalvesAtAnOverflowAndDoublesAfterAWindowOfGoodSteps) {
  LossScale scale({.initial = 1024, .window = 3});
  EXPECT_TRUE(scale.update(1));
  EXPECT_TRUE(scale.update(1));
  EXPECT_FALSE(scale.update(infinity));  // begins the window anew
  EXPECT_EQ(scale.value(), 512);
  EXPECT_TRUE(scale.update(1));
  EXPECT_TRUE(scale.update(1));
  EXPECT_EQ(scale.value(), 512);
  EXPECT_TRUE(scale.update(1));
  EXPECT_EQ(scale.value(), 1024);
  EXPECT_FALSE(scale.update(no_number));
  EXPECT_EQ(scale.value(), 512);
}

TEST(LossScale, StaysIfItIsFixed) {
  LossScale scale({.initial = 8, .window = 1, .fixed = true});
  EXPECT_TRUE(scale.update(1));
  EXPECT_FALSE(scale.update(infinity));
  EXPECT_EQ(scale.value(), 8);
  scale.restore({{"loss_scale", "2"}});
  EXPECT_EQ(scale.value(), 8);
  EXPECT_EQ(LossScale().value(), 1);
}

TEST(LossScale, IsHopelessAfterManyOverflowsInARow) {
  LossScale scale({.initial = 65536});
  for (int i = 1; i < LossScale::most_overflows; ++i) EXPECT_FALSE(scale.update(infinity));
  EXPECT_FALSE(scale.hopeless());
  EXPECT_TRUE(scale.update(1));  // in a row only
  for (int i = 1; i < LossScale::most_overflows; ++i) EXPECT_FALSE(scale.update(infinity));
  EXPECT_FALSE(scale.hopeless());
  EXPECT_FALSE(scale.update(infinity));
  EXPECT_TRUE(scale.hopeless());
}

TEST(LossScale, CountsOverflowsOnAfterACheckpoint) {
  LossScale scale({.initial = 65536});
  for (int i = 1; i < LossScale::most_overflows; ++i) scale.update(infinity);
  LossScale restored({.initial = 65536}), fresh({.initial = 65536});
  restored.restore(scale.notes());
  EXPECT_FALSE(restored.hopeless());
  restored.update(infinity);
  fresh.update(infinity);
  EXPECT_TRUE(restored.hopeless());
  EXPECT_FALSE(fresh.hopeless()) << "the control";
}

TEST(LossScale, GoesOnFromItsState) {
  LossScale scale({.initial = 1024, .window = 4});
  scale.update(infinity);
  for (int i = 0; i < 3; ++i) scale.update(1);
  LossScale restored({.initial = 1, .window = 4});
  restored.restore(scale.notes());
  EXPECT_TRUE(restored.update(1));
  EXPECT_EQ(restored.value(), 1024);
  restored.restore({});  // of training without a scale
  EXPECT_EQ(restored.value(), 1024);
  EXPECT_THROW(restored.restore({{"loss_scale", "much"}}), Error);
}

TEST(LossScale, RefusesImpossibleOptions) {
  EXPECT_THROW(LossScale({.initial = 0}), Error);
  EXPECT_THROW(LossScale({.initial = infinity}), Error);
  EXPECT_THROW(LossScale({.window = 0}), Error);
}

// An infinity among the gradients of one rank's share: all ranks leave the step out, because the norm is that of the whole
// gradient. The control decides from the rank's own share.
TEST(LossScale, OneRanksOverflowIsEverybodys) {
  for (const bool communicated : {true, false}) {
    std::vector<int> updated(3);
    run_threads(3, [&](const Communicator& world) {
      const Mesh mesh(world, {{Axis::data, 3}});
      Parameters parameters;
      parameters.add({.name = "w",
                      .global_shape = {30},
                      .first = {0},
                      .extents = {30},
                      .replicated_over = token_axes,
                      .sum_gradient_over = token_axes,
                      .initial = {1, 0}});
      ShardedParameters sharded(parameters, mesh, {});
      sharded.begin_step();
      sharded.finish_sums();
      const ShardedParameters::Range& own = sharded.ranges().front();
      if (world.rank() == 1) own.gradient.set(0, infinity);
      LossScale scale({.initial = 4});
      const double norm = gradient_norm(sharded);
      updated[static_cast<std::size_t>(world.rank())] = scale.update(communicated ? norm : own.gradient.at(0)) ? 1 : 0;
    });
    EXPECT_EQ(updated, (communicated ? std::vector<int>{0, 0, 0} : std::vector<int>{1, 0, 1}));
  }
}

}  // namespace
}  // namespace stretto
