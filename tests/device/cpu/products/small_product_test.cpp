#include "device/cpu/products/small_product.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace stretto::kernels::cpu {
namespace {

// Whole numbers, whose sums are exact, or others.
std::vector<float> numbers(std::int64_t count, bool whole) {
  std::vector<float> result;
  std::uint32_t state = 7;
  for (std::int64_t i = 0; i < count; ++i) {
    state = state * 1664525U + 1013904223U;
    result.push_back(whole ? static_cast<float>(static_cast<int>(state >> 16U) % 5 - 2)
                           : static_cast<float>(state >> 8U) / 16777216.0F);
  }
  return result;
}

// Rows are further apart than they are long, and what lies between those of c stays.
TEST(SmallProduct, EqualsTheSumForEachUse) {
  const std::int64_t shapes[][3] = {{64, 64, 64}, {4, 33, 5}, {1, 1, 1}, {7, 16, 3}, {9, 50, 29}, {3, 130, 2}, {5, 8, 0}};
  for (const auto& [m, n, k] : shapes) {
    for (const bool transposed : {false, true}) {
      for (const ProductUse use : {ProductUse::assign, ProductUse::subtract, ProductUse::sign}) {
        const std::vector<float> a = numbers((m + 2) * (k + 2), true), b = numbers((k + 1) * (n + 3), true);
        const std::vector<float> before = numbers(m * (n + 1), true);
        std::vector<float> c = before;
        SmallProduct p{m, n, k, a.data(), k + 2, 1, b.data(), n + 3, c.data(), n + 1};
        if (transposed) {
          p.a_row = 1;
          p.a_column = m + 2;
        }
        small_product(p, use);
        for (std::int64_t i = 0; i < m; ++i) {
          for (std::int64_t j = 0; j <= n; ++j) {
            float sum = 0;
            for (std::int64_t l = 0; l < k; ++l) {
              sum +=
                  a[static_cast<std::size_t>(i * p.a_row + l * p.a_column)] * b[static_cast<std::size_t>(l * p.b_row + j)];
            }
            const auto at = static_cast<std::size_t>(i * p.c_row + j);
            const float expected = j == n                      ? before[at]
                                   : use == ProductUse::assign ? sum
                                   : use == ProductUse::sign   ? static_cast<float>((sum > 0) - (sum < 0))
                                                               : before[at] - sum;
            ASSERT_EQ(c[at], expected) << m << " x " << n << " x " << k << ", element " << i << ", " << j;
          }
        }
      }
    }
  }
}

// The control: another k.
TEST(SmallProduct, HasTheSameBitsWhateverRowsAndColumnsAreBesideThem) {
  constexpr std::int64_t m = 13, n = 77, k = 40;
  const std::vector<float> a = numbers(m * k, false), b = numbers(k * n, false);
  const auto product = [&](std::int64_t rows, std::int64_t columns, std::int64_t depth) {
    std::vector<float> c(static_cast<std::size_t>(m * n));
    small_product({rows, columns, depth, a.data(), k, 1, b.data(), n, c.data(), n}, ProductUse::assign);
    return c;
  };
  const std::vector<float> whole = product(m, n, k);
  for (std::int64_t rows = 1; rows <= m; ++rows) {
    for (std::int64_t columns = 1; columns <= n; columns += 5) {
      const std::vector<float> part = product(rows, columns, k);
      for (std::int64_t i = 0; i < rows; ++i) {
        const auto row = static_cast<std::size_t>(i * n);
        ASSERT_EQ(std::memcmp(&part[row], &whole[row], static_cast<std::size_t>(columns) * sizeof(float)), 0);
      }
    }
  }
  EXPECT_NE(product(1, 1, k - 1).front(), whole.front());
}

}  // namespace
}  // namespace stretto::kernels::cpu
