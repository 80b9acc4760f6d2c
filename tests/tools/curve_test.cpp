// The curve of losses that stretto-train draws: all values of a short run, and means of neighbours in a long one.
#include "apps/train/report/curve.hpp"

#include <gtest/gtest.h>

namespace apps {
namespace {

TEST(Curve, OfAShortRunHasAllValues) {
  Curve curve;
  EXPECT_TRUE(curve.points().empty());
  for (int step = 1; step <= 1000; ++step) curve.add(step, 1.0 / step);
  const std::vector<CurvePoint> points = curve.points();
  ASSERT_EQ(points.size(), 1000U);
  for (int step = 1; step <= 1000; ++step) {
    EXPECT_EQ(points[step - 1].x, step);
    EXPECT_EQ(points[step - 1].y, 1.0 / step);
  }
}

TEST(Curve, OfALongRunHasMeansOfNeighbours) {
  Curve curve;
  constexpr int steps = 100'001;  // the last point is of one value
  for (int step = 1; step <= steps; ++step) curve.add(step, step);
  const std::vector<CurvePoint> points = curve.points();
  const double each = points.front().x;
  EXPECT_LE(points.size(), Curve::most_points);
  EXPECT_GT(points.size(), Curve::most_points / 2);
  for (std::size_t i = 0; i + 1 < points.size(); ++i) {
    ASSERT_EQ(points[i].x, each * static_cast<double>(i + 1));
    ASSERT_EQ(points[i].y, points[i].x - (each - 1) / 2);  // the mean of the steps up to x
  }
  EXPECT_EQ(points.back().x, steps);
  EXPECT_EQ(points.back().y, steps);
}

}  // namespace
}  // namespace apps
