#include "stretto/models/stages.hpp"

#include <gtest/gtest.h>

#include "support/error.hpp"

namespace stretto {
namespace {

using BlockCounts = std::vector<std::int64_t>;

TEST(DivideBlocks, AsEvenlyAsTheHeadLets) {
  EXPECT_EQ(divide_blocks(5, {0}, 9), BlockCounts{5});
  EXPECT_EQ(divide_blocks(12, {0, 1, 2, 3}, 0), (BlockCounts{3, 3, 3, 3}));
  EXPECT_EQ(divide_blocks(12, {0, 1, 2, 3}, 0.1), (BlockCounts{3, 3, 3, 3}));
  EXPECT_EQ(divide_blocks(12, {0, 1, 2, 3}, 1.5), (BlockCounts{3, 3, 4, 2}));
  EXPECT_EQ(divide_blocks(12, {0, 1, 2, 3}, 2.5), (BlockCounts{3, 4, 4, 1}));  // the most is 4 then, and not 4.5
  EXPECT_EQ(divide_blocks(12, {0, 1, 2, 3}, 5.4), (BlockCounts{3, 4, 4, 1}));  // a stage has at least one
  EXPECT_EQ(divide_blocks(7, {0, 1, 2}, 0.1), (BlockCounts{2, 3, 2}));
}

// The two parts of a stage count together.
TEST(DivideBlocks, CountsStages) {
  EXPECT_EQ(divide_blocks(6, {0, 1, 1, 0}, 0.1), (BlockCounts{2, 1, 2, 1}));
  EXPECT_EQ(divide_blocks(6, {0, 1, 0, 1}, 0.1), (BlockCounts{1, 2, 2, 1}));
}

TEST(DivideBlocks, RefusesMorePartsThanBlocks) {
  EXPECT_EQ(sentence_of([] {
              divide_blocks(3, {0, 1, 2, 3}, 0);
            }),
            "3 layers cannot be divided into 4 parts; give fewer stages or virtual stages, or more layers.");
}

}  // namespace
}  // namespace stretto
