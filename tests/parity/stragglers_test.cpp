// Which rank computes slowest, judged from the times of steps.
#include "apps/train/run/stragglers.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace apps {
namespace {

// A step takes 0.1 s; the ranks compute for 0.06 s of it, give or take `noise`, and `slow` ones for 0.02 s more.
std::vector<RankSteps> four_ranks(double noise, const std::vector<int>& slow, unsigned seed = 1) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> scatter(-noise, noise);
  std::vector<RankSteps> ranks(4);
  for (int rank = 0; rank < 4; ++rank) {
    const bool is_slow = std::ranges::find(slow, rank) != slow.end();
    for (int step = 0; step < Stragglers::interval; ++step) {
      ranks[static_cast<std::size_t>(rank)].seconds.push_back(0.1);
      ranks[static_cast<std::size_t>(rank)].computing.push_back(0.06 + (is_slow ? 0.02 : 0) + scatter(random));
    }
  }
  return ranks;
}

const std::vector<int> one_stage{0, 0, 0, 0};

TEST(Stragglers, TheSlowRankIsNamedWithItsShareOfTheStep) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    const auto found = slowest(four_ranks(0.02, {2}, seed), one_stage, 0.1);
    ASSERT_TRUE(found);
    EXPECT_EQ(found->rank, 2);
    EXPECT_TRUE(found->named) << found->share;
    EXPECT_NEAR(found->share, 0.2, 0.05);
  }
  EXPECT_FALSE(slowest(four_ranks(0.02, {2}), one_stage, 0.3)->named);
}

TEST(Stragglers, ChanceIsNotNamed) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    EXPECT_FALSE(slowest(four_ranks(0.02, {}, seed), one_stage, 0.1)->named) << seed;
  }
}

TEST(Stragglers, OneLongStepIsNotNamed) {
  auto ranks = four_ranks(0, {});
  ranks[1].seconds[7] += 5;
  ranks[1].computing[7] += 5;
  EXPECT_FALSE(slowest(ranks, one_stage, 0.1)->named);
}

TEST(Stragglers, ARankWhoseCoresOthersTookIsNotNamed) {
  auto ranks = four_ranks(0, {2});
  ranks[2].preempted = 0.9;
  EXPECT_FALSE(slowest(ranks, one_stage, 0.1)->named);
  for (RankSteps& rank : ranks) rank.preempted = 0.9;  // all alike
  EXPECT_TRUE(slowest(ranks, one_stage, 0.1)->named);
}

TEST(Stragglers, ARankThatSharesItsCoreIsNotNamed) {
  auto ranks = four_ranks(0, {2});
  for (RankSteps& rank : ranks) rank.preempted = 1.2;
  EXPECT_TRUE(slowest(ranks, one_stage, 0.1)->named) << "the control: it has most of its core";
  for (RankSteps& rank : ranks) rank.preempted = 1.3;
  EXPECT_FALSE(slowest(ranks, one_stage, 0.1)->named);
}

TEST(Stragglers, RanksAreComparedWithTheirOwnStage) {
  EXPECT_FALSE(slowest(four_ranks(0, {2, 3}), {0, 0, 1, 1}, 0.1)->named);
  EXPECT_TRUE(slowest(four_ranks(0, {2}), {0, 0, 1, 1}, 0.1)->named);
  EXPECT_FALSE(slowest(four_ranks(0, {2}), {0, 1, 2, 3}, 0.1));
}

}  // namespace
}  // namespace apps
