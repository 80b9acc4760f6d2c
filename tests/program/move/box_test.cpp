#include "program/move/box.hpp"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

namespace stretto {
namespace {

Box random_box(std::mt19937& draw, const Shape& shape) {
  Box box = whole(shape);
  for (std::size_t d = 0; d < shape.size(); ++d) {
    box.begin[d] = static_cast<std::int64_t>(draw() % static_cast<unsigned>(shape[d] + 1));
    box.end[d] = box.begin[d] + static_cast<std::int64_t>(draw() % static_cast<unsigned>(shape[d] - box.begin[d] + 1));
  }
  return box;
}

Shape random_shape(std::mt19937& draw) {
  Shape shape;
  for (unsigned d = 0; d < 1 + draw() % 4; ++d) shape.push_back(1 + static_cast<std::int64_t>(draw() % 5));
  return shape;
}

// The numbers of a box's elements in its tensor, in row-major order.
std::vector<std::int64_t> numbers(const Shape& shape, const Box& box) {
  std::vector<std::int64_t> result;
  for (const Run& run : runs(whole(shape), box)) {
    for (std::int64_t i = 0; i < run.count; ++i) result.push_back(run.offset + i);
  }
  return result;
}

TEST(Box, RunsAreItsElementsInOrder) {
  std::mt19937 draw(5);
  for (int i = 0; i < 500; ++i) {
    const Shape shape = random_shape(draw);
    const Box box = random_box(draw, shape);
    std::vector<std::int64_t> expected;
    const std::int64_t all = whole(shape).elements();
    for (std::int64_t number = 0; number < all; ++number) {
      bool inside = true;
      std::int64_t rest = number;
      for (std::size_t d = shape.size(); d-- > 0;) {
        const std::int64_t index = rest % shape[d];
        rest /= shape[d];
        inside = inside && box.begin[d] <= index && index < box.end[d];
      }
      if (inside) expected.push_back(number);
    }
    EXPECT_EQ(numbers(shape, box), expected) << text(box);
    EXPECT_EQ(box.elements(), static_cast<std::int64_t>(expected.size()));
  }
  EXPECT_EQ(runs(whole({3, 4, 5}), {{1, 0, 0}, {3, 4, 5}}).size(), 1u) << "whole planes are one run";
}

TEST(Box, IsCutIntoDisjointParts) {
  std::mt19937 draw(6);
  for (int i = 0; i < 500; ++i) {
    const Shape shape = random_shape(draw);
    const Box box = random_box(draw, shape);
    if (box.elements() == 0) continue;
    const auto parts = static_cast<int>(1 + draw() % 6);
    const std::vector<Box> found = cut(box, parts);
    EXPECT_LE(found.size(), static_cast<std::size_t>(parts));
    std::int64_t sum = 0;
    for (std::size_t a = 0; a < found.size(); ++a) {
      EXPECT_GT(found[a].elements(), 0);
      EXPECT_TRUE(contains(box, found[a]));
      sum += found[a].elements();
      for (std::size_t b = 0; b < a; ++b) EXPECT_FALSE(common(found[a], found[b]));
    }
    EXPECT_EQ(sum, box.elements());
  }
}

TEST(Box, FlatRangesKeepTheOrderOfElements) {
  std::mt19937 draw(7);
  for (int i = 0; i < 1000; ++i) {
    const Shape shape = random_shape(draw);
    const Box box = random_box(draw, shape);
    const std::vector<std::int64_t> all = numbers(shape, box);
    const auto last = static_cast<std::int64_t>(draw() % (all.size() + 1));
    const auto first = static_cast<std::int64_t>(draw() % static_cast<unsigned>(last + 1));
    std::vector<std::int64_t> found;
    const std::vector<Box> boxes = flat_range(box, first, last);
    for (const Box& part : boxes) {
      const std::vector<std::int64_t> its = numbers(shape, part);
      found.insert(found.end(), its.begin(), its.end());
    }
    EXPECT_EQ(found, std::vector<std::int64_t>(all.begin() + first, all.begin() + last))
        << text(box) << first << " " << last;
    EXPECT_LE(boxes.size(), 2 * shape.size()) << "a head, a middle and a tail of each dimension at most";
  }
}

}  // namespace
}  // namespace stretto
