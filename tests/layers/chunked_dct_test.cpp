// The transform of chunks by its definition, its inverse, and how matrices are divided.
#include "layers/optimizer/matrices/chunked_dct.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "stretto/layers/parameter.hpp"

namespace stretto {
using kernels::cpu::ProductUse;

namespace {

Tensor normal_matrix(const ChunkGrid& grid) {
  Tensor matrix({grid.rows, grid.columns}, DType::f32);
  for (std::int64_t i = 0; i < matrix.size(); ++i) matrix.set(i, random_normal(1, "x", static_cast<std::uint64_t>(i)));
  return matrix;
}

double basis(std::int64_t size, std::int64_t k, std::int64_t i) {
  const auto n = static_cast<double>(size);
  return std::sqrt((k > 0 ? 2 : 1) / n) * std::cos(std::numbers::pi * static_cast<double>((2 * i + 1) * k) / (2 * n));
}

// As DeMo's published code: the largest divisors that are not above 64. 50257 = 29 x 1733.
TEST(ChunkGrid, HasTheLargestDivisors) {
  const auto sides = [](std::int64_t rows, std::int64_t columns, std::int64_t most = 64) {
    const ChunkGrid grid = ChunkGrid::of(rows, columns, most);
    EXPECT_EQ(grid.chunks() * grid.of_chunk(), rows * columns);
    return std::pair(grid.height, grid.width);
  };
  EXPECT_EQ(sides(768, 3072), std::pair(64L, 64L));
  EXPECT_EQ(sides(192, 576), std::pair(64L, 64L));
  EXPECT_EQ(sides(50257, 100), std::pair(29L, 50L));
  EXPECT_EQ(sides(1, 48), std::pair(1L, 48L));
  EXPECT_EQ(sides(257, 1), std::pair(1L, 1L)) << "a prime";
  EXPECT_EQ(sides(10, 40, 1), std::pair(1L, 1L));
  EXPECT_EQ(sides(10, 40, 7), std::pair(5L, 5L));
}

constexpr ProductUse uses[] = {ProductUse::assign, ProductUse::subtract, ProductUse::sign};

double used(ProductUse use, double before, double result) {
  if (use == ProductUse::assign) return result;
  return use == ProductUse::subtract ? before - result : static_cast<double>(result > 0) - static_cast<double>(result < 0);
}

TEST(ChunkedDCT, IsTheTransformOfEachChunkAndItsInverse) {
  ChunkedDCT dct;
  for (const ChunkGrid& grid : {ChunkGrid::of(10, 40, 8), ChunkGrid::of(1, 9, 3), ChunkGrid::of(7, 12, 5),
                                ChunkGrid::of(6, 4, 1), ChunkGrid::of(128, 64, 64), ChunkGrid::of(9, 1, 3)}) {
    const Tensor matrix = normal_matrix(grid), back = matrix.clone();
    const ChunkTransform transform = dct.of(grid);
    ChunkTransform::Scratch scratch(grid);
    std::vector<float> coefficients(static_cast<std::size_t>(grid.of_chunk()));
    const auto place = [&](std::int64_t chunk, std::int64_t j) {
      return grid.begin(chunk) + j / grid.width * grid.columns + j % grid.width;
    };
    double most = 0, apart = 0;
    for (std::int64_t chunk = 0; chunk < grid.chunks(); ++chunk) {
      transform.encode(matrix.data<float>() + grid.begin(chunk), coefficients.data(), scratch);
      for (std::int64_t i = 0; i < std::min<std::int64_t>(grid.of_chunk(), 100); ++i) {
        double sum = 0;
        for (std::int64_t j = 0; j < grid.of_chunk(); ++j) {
          sum += basis(grid.height, i / grid.width, j / grid.width) * basis(grid.width, i % grid.width, j % grid.width) *
                 matrix.at(place(chunk, j));
        }
        const double coefficient = coefficients[static_cast<std::size_t>(i)];
        most = std::max(most, std::abs(coefficient - sum));
        apart = std::max(apart, std::abs(coefficient - matrix.at(place(chunk, i))));
      }
      transform.decode(coefficients.data(), back.data<float>() + grid.begin(chunk), ProductUse::assign, scratch);
    }
    EXPECT_LT(most, 1e-5) << grid.rows << " x " << grid.columns;
    double off = 0;
    for (std::int64_t i = 0; i < back.size(); ++i) off = std::max(off, std::abs(back.at(i) - matrix.at(i)));
    EXPECT_LT(off, 1e-5);
    if (grid.of_chunk() > 1) {
      EXPECT_GT(apart, 0.1) << "the control: coefficients are no copy";
    }
  }
}

// One coefficient, some, and none, whose inverse is 0. What lies beside the chunk stays.
TEST(ChunkedDCT, DecodesFewCoefficientsForEachUse) {
  ChunkedDCT dct;
  for (const ChunkGrid& grid : {ChunkGrid::of(10, 40, 8), ChunkGrid::of(1, 9, 3), ChunkGrid::of(128, 64, 64)}) {
    const ChunkTransform transform = dct.of(grid);
    ChunkTransform::Scratch scratch(grid);
    const std::int64_t last = grid.chunks() - 1, size = grid.of_chunk();
    for (const auto& places : std::vector<std::vector<std::int64_t>>{{size - 1}, {0, size / 2, size - 1}, {}}) {
      std::vector<float> coefficients(static_cast<std::size_t>(size));
      for (const std::int64_t at : places) coefficients[static_cast<std::size_t>(at)] = static_cast<float>(at % 7) - 3.5F;
      for (const ProductUse use : uses) {
        const Tensor before = normal_matrix(grid), matrix = before.clone();
        transform.decode(coefficients.data(), matrix.data<float>() + grid.begin(last), use, scratch);
        for (std::int64_t chunk = 0; chunk < grid.chunks(); ++chunk) {
          for (std::int64_t i = 0; i < size; ++i) {
            double sum = 0;
            for (const std::int64_t j : places) {
              sum += basis(grid.height, j / grid.width, i / grid.width) * basis(grid.width, j % grid.width, i % grid.width) *
                     coefficients[static_cast<std::size_t>(j)];
            }
            if (use == ProductUse::sign && !places.empty() && std::abs(sum) < 1e-6) continue;
            const std::int64_t at = grid.begin(chunk) + i / grid.width * grid.columns + i % grid.width;
            const double was = before.at(at);
            ASSERT_NEAR(matrix.at(at), chunk == last ? used(use, was, sum) : was, 1e-5) << at << " of " << grid.rows;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace stretto
