#include "stretto/attention_mask.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace stretto::kernels {
namespace {

// A row for each query and a column for each key, of the positions 0 to 7.
std::vector<std::string> picture(const AttentionMask& mask) {
  std::vector<std::string> rows;
  for (std::int64_t query = 0; query < 8; ++query) {
    std::string row;
    for (std::int64_t key = 0; key < 8; ++key) row += mask.sees(query, key) ? '#' : '.';
    rows.push_back(row);
  }
  return rows;
}

TEST(AttentionMask, Pictures) {
  using Rows = std::vector<std::string>;
  EXPECT_EQ(picture({}),
            (Rows{"#.......", "##......", "###.....", "####....", "#####...", "######..", "#######.", "########"}));
  EXPECT_EQ(picture({.causal = false}), Rows(8, "########"));
  EXPECT_EQ(picture({.window = 3}),
            (Rows{"#.......", "##......", "###.....", ".###....", "..###...", "...###..", "....###.", ".....###"}));
  EXPECT_EQ(picture({.stride = 3}),
            (Rows{"#.......", "##......", "###.....", "####....", ".####...", "..####..", "#..####.", ".#..####"}));
  EXPECT_EQ(picture({.window = 2, .global = 2}),
            (Rows{"#.......", "##......", "###.....", "####....", "##.##...", "##..##..", "##...##.", "##....##"}));
  EXPECT_EQ(picture({.window = 1, .global = 0}),
            (Rows{"#.......", ".#......", "..#.....", "...#....", "....#...", ".....#..", "......#.", ".......#"}));
  EXPECT_EQ(picture({.global = 2}), picture({}));
}

TEST(AttentionMask, PositionsOfZigzagAndStripedRows) {
  constexpr Positions zigzag{.first = 4, .split = 2, .second = 10};
  const std::int64_t expected[] = {4, 5, 10, 11};
  for (std::int64_t row = 0; row < 4; ++row) EXPECT_EQ(zigzag.at(row), expected[row]);
  constexpr Positions striped{.first = 3, .stride = 4};
  EXPECT_EQ(striped.at(2), 11);
}

TEST(AttentionMask, RangesAgreeWithTheirPairs) {
  std::mt19937 generator(1);
  const auto draw = [&](std::int64_t first, std::int64_t last) {
    return std::uniform_int_distribution<std::int64_t>(first, last)(generator);
  };
  int empty = 0;
  int full = 0;
  for (int i = 0; i < 20000; ++i) {
    AttentionMask mask;
    switch (draw(0, 4)) {
      case 0: mask.causal = false; break;
      case 1: mask.window = draw(1, 20); break;
      case 2: mask.stride = draw(1, 12); break;
      case 3: mask = {.window = draw(0, 10), .stride = draw(0, 12), .global = draw(0, 9)}; break;
      default: break;
    }
    const std::int64_t stride = draw(1, 4);
    const auto range = [&] {
      const Positions positions{
          .first = draw(0, 40), .stride = stride, .split = draw(0, 2) > 0 ? 0 : draw(1, 9), .second = draw(0, 40)};
      const std::int64_t begin = draw(0, 9);
      return TokenRange{positions, begin, begin + draw(0, 9)};
    };
    const TokenRange queries = range();
    const TokenRange keys = range();
    std::int64_t seen = 0;
    for (std::int64_t q = queries.begin; q < queries.end; ++q) {
      for (std::int64_t k = keys.begin; k < keys.end; ++k) seen += mask.sees(queries.positions.at(q), keys.positions.at(k));
    }
    const std::int64_t pairs = (queries.end - queries.begin) * (keys.end - keys.begin);
    SCOPED_TRACE(testing::Message() << "case " << i);
    ASSERT_EQ(mask.sees_any(queries, keys), seen > 0);
    ASSERT_EQ(mask.pairs(queries, keys), seen);
    if (mask.sees_all(queries, keys)) {
      ASSERT_EQ(seen, pairs);
    }
    // Where one rule alone decides, "all" is exact, too.
    if (!mask.sparse() && seen == pairs) {
      ASSERT_TRUE(mask.sees_all(queries, keys));
    }
    empty += seen == 0;
    full += pairs > 0 && seen == pairs;
  }
  EXPECT_GT(empty, 1000);
  EXPECT_GT(full, 1000);
}

// A million tokens, of which nobody tries every pair.
TEST(AttentionMask, CountsPairsOfLongSequences) {
  constexpr std::int64_t all = std::int64_t{1} << 20;
  const TokenRange tokens{{}, 0, all};
  EXPECT_EQ((AttentionMask{.causal = false}.pairs(tokens, tokens)), all * all);
  EXPECT_EQ(AttentionMask().pairs(tokens, tokens), all * (all + 1) / 2);
  constexpr std::int64_t window = 1000;
  const std::int64_t near = window * all - window * (window - 1) / 2;
  EXPECT_EQ((AttentionMask{.window = window}.pairs(tokens, tokens)), near);
  const AttentionMask first{.window = window, .global = 1};  // all but the first `window` queries see one key more
  EXPECT_EQ(first.pairs(tokens, tokens), near + all - window);
  for (const std::int64_t wide : {all, INT64_MAX}) {
    EXPECT_EQ((AttentionMask{.window = wide}.pairs(tokens, tokens)), all * (all + 1) / 2);
    EXPECT_EQ((AttentionMask{.stride = wide}.pairs(tokens, tokens)), all * (all + 1) / 2);
  }
}

// With other strides, "any" may be true of a range that sees nothing, but never false of one that sees something.
TEST(AttentionMask, WithOtherStridesAnyMayErrToOneSideOnly) {
  for (std::int64_t query_stride = 1; query_stride < 5; ++query_stride) {
    for (std::int64_t key_stride = 1; key_stride < 5; ++key_stride) {
      for (std::int64_t first = 0; first < 30; ++first) {
        const AttentionMask mask{.stride = 7};
        const TokenRange queries{{.first = first, .stride = query_stride}, 0, 4};
        const TokenRange keys{{.first = 3, .stride = key_stride}, 0, 4};
        std::int64_t seen = 0;
        for (std::int64_t q = 0; q < 4; ++q) {
          for (std::int64_t k = 0; k < 4; ++k) seen += mask.sees(queries.positions.at(q), keys.positions.at(k));
        }
        const bool any = seen > 0;
        EXPECT_TRUE(!any || mask.sees_any(queries, keys));
        EXPECT_EQ(mask.pairs(queries, keys), seen);
      }
    }
  }
}

}  // namespace
}  // namespace stretto::kernels
