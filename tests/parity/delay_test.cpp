// Gradients that are one step late: training must have the bits of the reference loop, whatever the layout.
#include "support/reference_loop.hpp"

#include "parity.hpp"

namespace parity {
namespace {

// Gradients and updates write down what they were given, so that the loop itself can be read.
std::string formula(std::size_t delay, int steps) {
  return delayed_updates(
      std::string("W"), delay, steps, [](int t, const std::string& at) { return fmt::format("g{}({})", t, at); },
      [](int, const std::string& from, const std::string& gradient) { return from + "-" + gradient; });
}

TEST(ReferenceLoop, UsesWeightsThatAreSoManyUpdatesOld) {
  EXPECT_EQ(formula(1, 0), "W");
  EXPECT_EQ(formula(0, 2), "W-g0(W)-g1(W-g0(W))");
  EXPECT_EQ(formula(1, 2), "W-g0(W)-g1(W)");
  EXPECT_EQ(formula(1, 3), "W-g0(W)-g1(W)-g2(W-g0(W))");
  EXPECT_EQ(formula(2, 4), "W-g0(W)-g1(W)-g2(W)-g3(W-g0(W))");
}

}  // namespace
}  // namespace parity
