#include "device/cpu/products/tile_product.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "stretto/kernels.hpp"

namespace stretto::kernels::cpu {
namespace {

struct Operands {
  std::vector<bf16> a, b;

  // Whole numbers, whose sums are exact in every order; or others, whose sums are not.
  Operands(const Product& p, bool whole) : a(static_cast<std::size_t>(p.m * p.k)), b(static_cast<std::size_t>(p.k * p.n)) {
    std::uint32_t state = 1;
    const auto fill = [&](std::vector<bf16>& values) {
      for (bf16& value : values) {
        state = state * 1664525U + 1013904223U;
        const auto number = static_cast<float>(static_cast<int>(state >> 16U) % 5 - 2);
        value = bf16(whole ? number : number * 0.37F + 0.011F * static_cast<float>(state >> 28U));
      }
    };
    fill(a);
    fill(b);
  }
};

std::vector<float> sums_of(const Product& p, const Operands& of, float before) {
  std::vector<float> sums(static_cast<std::size_t>(p.m * p.n));
  for (std::int64_t i = 0; i < p.m; ++i) {
    for (std::int64_t j = 0; j < p.n; ++j) {
      float sum = p.accumulate ? before : 0;
      for (std::int64_t l = 0; l < p.k; ++l) {
        sum += static_cast<float>(of.a[static_cast<std::size_t>(p.transpose_a ? l * p.m + i : i * p.k + l)]) *
               static_cast<float>(of.b[static_cast<std::size_t>(p.transpose_b ? j * p.k + l : l * p.n + j)]);
      }
      sums[static_cast<std::size_t>(i * p.n + j)] = sum;
    }
  }
  return sums;
}

TEST(TileProduct, EqualsTheSum) {
  if (!processor_has_tiles()) GTEST_SKIP() << "this processor has no AMX";
  // Whole panels, none, and several parts of k, blocks of rows and of columns.
  const std::int64_t shapes[][3] = {{32, 32, 32}, {33, 47, 35}, {1, 7, 5}, {70, 800, 65}, {130, 31, 700}, {64, 96, 1300}};
  for (const auto& [m, n, k] : shapes) {
    for (unsigned choice = 0; choice < 16; ++choice) {
      const Product p{(choice & 1) != 0, (choice & 2) != 0, m, n, k, (choice & 4) != 0};
      const Operands operands(p, true);
      const std::vector<float> expected = sums_of(p, operands, 3);
      const int threads = 1 + static_cast<int>(choice % 3);
      SCOPED_TRACE(testing::Message() << m << " x " << n << " x " << k << ", choice " << choice);
      if ((choice & 8) != 0) {
        std::vector<bf16> c(expected.size(), bf16(3));
        tile_product(p, operands.a.data(), operands.b.data(), DType::bf16, c.data(), threads);
        for (std::size_t i = 0; i < c.size(); ++i) ASSERT_EQ(c[i], bf16(expected[i])) << "element " << i;
      } else {
        std::vector<float> c(expected.size(), 3);
        tile_product(p, operands.a.data(), operands.b.data(), DType::f32, c.data(), threads);
        ASSERT_EQ(c, expected);
      }
    }
  }
}

// A row of a product has the same bits whatever other rows are computed with it, and in whatever threads.
TEST(TileProduct, HasTheSameBitsForOtherNumbersOfRowsAndThreads) {
  if (!processor_has_tiles()) GTEST_SKIP() << "this processor has no AMX";
  const Product whole{false, true, 200, 90, 1400, false};
  const Operands operands(whole, false);
  const auto product = [&](std::int64_t rows, int threads) {
    Product p = whole;
    p.m = rows;
    std::vector<float> c(static_cast<std::size_t>(p.m * p.n));
    tile_product(p, operands.a.data(), operands.b.data(), DType::f32, c.data(), threads);
    return c;
  };
  const std::vector<float> expected = product(200, 1);
  EXPECT_NE(expected, sums_of(whole, operands, 0)) << "These sums are exact in every order, so that the test shows nothing.";
  EXPECT_EQ(product(200, 3), expected);
  const std::vector<float> fewer = product(37, 1);
  EXPECT_TRUE(std::equal(fewer.begin(), fewer.end(), expected.begin()));
}

}  // namespace
}  // namespace stretto::kernels::cpu
