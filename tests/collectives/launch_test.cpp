// Ranks that are processes, started together.
#include "stretto/launch.hpp"

#include <gtest/gtest.h>

#include "core/fail.hpp"

namespace stretto {
namespace {

int sum_over(int ranks, double expected) {
  return launch(ranks, [&](const Communicator& world) {
    double sum = world.rank() + 1;
    world.all_reduce(&sum, &sum, 1, DType::f64, ReduceOp::sum, Stream::inline_());
    require(sum == expected, "The sum is {}, not {}.", sum, expected);
    world.barrier(Stream::inline_());
  });
}

TEST(Launch, ConnectsManyRanks) {
  EXPECT_EQ(sum_over(64, 64 * 65 / 2), 0);
  EXPECT_NE(sum_over(2, 4), 0);  // the control
}

}  // namespace
}  // namespace stretto
