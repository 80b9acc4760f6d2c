#include "models/families/packed_rows.hpp"

#include <gmock/gmock.h>

#include "support/error.hpp"

namespace stretto {
namespace {

// The row of a tensor that the parameter has as a row of its own.
std::pair<std::string, std::int64_t> row_of(const std::vector<ForeignRows>& blocks, std::int64_t row) {
  for (const ForeignRows& block : blocks) {
    if (row >= block.count) {
      row -= block.count;
      continue;
    }
    const std::int64_t half = block.count / 2;
    const std::int64_t at = block.order == RowOrder::same ? row : row % half * 2 + row / half;
    return {block.tensor.name, block.first + at};
  }
  return {"", 0};
}

// Heads by group in packed_heads(): a head of queries is (head of keys) * each + part.
TEST(PackedRows, AreThoseOfTheHeads) {
  for (const PackedHeads sizes : {PackedHeads{4, 4, 2}, {6, 2, 4}, {8, 1, 6}, {9, 3, 64}}) {
    const auto& [heads, kv_heads, d] = sizes;
    const ForeignTensor q{"q", {heads * d, 5}}, k{"k", {kv_heads * d, 5}}, v{"v", {kv_heads * d, 5}};
    const auto blocks = [&](RowOrder order) {
      return packed_qkv_rows(sizes, {q, 0, q.rows()}, {k, 0, k.rows()}, {v, 0, v.rows()}, order);
    };
    const auto same = blocks(RowOrder::same), interleaved = blocks(RowOrder::interleaved);
    const std::int64_t each = heads / kv_heads;
    for (std::int64_t row = 0; row < (heads + 2 * kv_heads) * d; ++row) {
      const std::int64_t part = row / (kv_heads * d), group = row / d % kv_heads, i = row % d;
      const std::int64_t of = part < each ? group * each + part : group;
      const std::string name = part < each ? "q" : part == each ? "k" : "v";
      const std::int64_t pair = name == "v" ? i : i % (d / 2) * 2 + i / (d / 2);
      EXPECT_EQ(row_of(same, row), std::pair(name, of * d + i));
      EXPECT_EQ(row_of(interleaved, row), std::pair(name, of * d + pair));
    }
  }
}

// One tensor of queries, keys and values, one behind the other.
TEST(PackedRows, MayLieInOneTensor) {
  const ForeignTensor all{"qkv", {32, 5}};
  const auto blocks = packed_qkv_rows({4, 2, 4}, {all, 0, 16}, {all, 16, 8}, {all, 24, 8}, RowOrder::same);
  EXPECT_EQ(row_of(blocks, 4), std::pair(std::string("qkv"), std::int64_t{8}));  // the second group's first head
  EXPECT_EQ(row_of(blocks, 16), std::pair(std::string("qkv"), std::int64_t{16}));
  EXPECT_EQ(row_of(blocks, 31), std::pair(std::string("qkv"), std::int64_t{31}));
}

TEST(PackedRows, AreRefusedForOtherSizes) {
  const ForeignTensor q{"q", {16, 5}}, k{"k", {8, 5}};
  const auto rows = [&](const PackedHeads& sizes) {
    return [&, sizes] { packed_qkv_rows(sizes, {q, 0, 16}, {k, 0, 8}, {k, 0, 8}, RowOrder::same); };
  };
  EXPECT_EQ(sentence_of(rows({4, 2, 4})), "");
  expect_refusal(rows({4, 3, 4}), "4 heads do not share 3 heads");
  expect_refusal(rows({4, 1, 4}), "q, k and k have 16, 8 and 8 rows");
}

}  // namespace
}  // namespace stretto
