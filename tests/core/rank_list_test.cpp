#include "core/rank_list.hpp"

#include <gtest/gtest.h>

namespace stretto {
namespace {

TEST(RankList, ShortensRunsOfThreeAndMore) {
  EXPECT_EQ(rank_list({3}), "rank 3");
  EXPECT_EQ(rank_list({0, 1}), "ranks 0 and 1");
  EXPECT_EQ(rank_list({0, 1, 2}), "ranks 0 to 2");
  EXPECT_EQ(rank_list({0, 1, 2, 5, 7, 8}), "ranks 0 to 2, 5, 7 and 8");
}

}  // namespace
}  // namespace stretto
