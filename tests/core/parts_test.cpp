// A count is cut into parts of nearly the same size, one after the other.
#include "core/parts.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace stretto {
namespace {

TEST(Parts, FollowEachOtherAndDifferByAtMostOne) {
  for (const std::int64_t count : {0, 1, 2, 5, 16, 17, 1000}) {
    for (int parts = 1; parts <= 20; ++parts) {
      const std::vector<std::int64_t> sizes = part_sizes(count, parts);
      ASSERT_EQ(sizes.size(), static_cast<std::size_t>(parts));
      EXPECT_EQ(std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0}), count);
      EXPECT_TRUE(std::is_sorted(sizes.rbegin(), sizes.rend()));
      EXPECT_LE(sizes.front() - sizes.back(), 1);
      std::int64_t begin = 0;
      for (int i = 0; i < parts; ++i) {
        EXPECT_EQ(part_begin(count, parts, i), begin);
        EXPECT_EQ(part_size(count, parts, i), sizes[static_cast<std::size_t>(i)]);
        begin += part_size(count, parts, i);
      }
      EXPECT_EQ(part_begin(count, parts, parts), count);
    }
  }
}

TEST(Parts, OfSevenInThreeAreThreeTwoTwo) { EXPECT_EQ(part_sizes(7, 3), (std::vector<std::int64_t>{3, 2, 2})); }

}  // namespace
}  // namespace stretto
