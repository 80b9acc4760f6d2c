#include "stretto/shape.hpp"

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "stretto/tensor.hpp"
#include "support/error.hpp"

namespace stretto {
namespace {

TEST(Shape, IsAListOfExtents) {
  Shape shape{4, 5};
  shape.push_back(6);
  EXPECT_EQ(shape, (Shape{4, 5, 6}));
  EXPECT_NE(shape, (Shape{4, 5}));
  EXPECT_NE(shape, (Shape{4, 5, 7}));
  EXPECT_EQ(shape.size(), 3U);
  EXPECT_EQ(shape.front(), 4);
  EXPECT_EQ(shape.back(), 6);
  shape[1] = 1;
  EXPECT_EQ(fmt::format("{} is {}", shape, fmt::join(shape, "x")), "[4, 1, 6] is 4x1x6");
  shape.insert(shape.begin(), 9);
  EXPECT_EQ(shape, (Shape{9, 4, 1, 6}));
  EXPECT_EQ(Shape(2, 7), (Shape{7, 7}));
  EXPECT_TRUE(Shape().empty());
}

TEST(Shape, RefusesTooManyDimensions) {
  Shape shape(Shape::most, 1);
  expect_refusal([&] { shape.push_back(1); }, "A shape of 7 dimensions was asked for; there are at most 6");
  EXPECT_EQ(shape.size(), Shape::most);
  expect_refusal([] { Tensor({1, 1, 1, 1, 1, 1, 1}, DType::f32); }, "7 dimensions");
}

}  // namespace
}  // namespace stretto
