// The iteration of Muon on one matrix: its singular values come near 1.
#include "layers/optimizer/matrices/newton_schulz.hpp"

#include <gmock/gmock.h>

#include <cmath>
#include <numeric>

#include "stretto/layers/parameter.hpp"
#include "support/data.hpp"

namespace stretto {
namespace {

// The singular values of a matrix, by rotations of its shorter side until its rows or columns are orthogonal (one-sided
// Jacobi).
std::vector<double> singular_values(const Tensor& matrix) {
  const std::int64_t rows = matrix.rows(), columns = matrix.columns(), side = std::min(rows, columns);
  std::vector<std::vector<double>> vectors(static_cast<std::size_t>(side));
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < columns; ++j)
      vectors[static_cast<std::size_t>(rows <= columns ? i : j)].push_back(matrix.at(i * columns + j));
  }
  const auto dot = [](const std::vector<double>& a, const std::vector<double>& b) {
    return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
  };
  for (int sweep = 0; sweep < 30; ++sweep) {
    for (std::size_t p = 0; p < vectors.size(); ++p) {
      for (std::size_t q = p + 1; q < vectors.size(); ++q) {
        const double between = dot(vectors[p], vectors[q]);
        if (std::abs(between) < 1e-15) continue;
        const double zeta = (dot(vectors[q], vectors[q]) - dot(vectors[p], vectors[p])) / (2 * between);
        const double tangent = (zeta >= 0 ? 1 : -1) / (std::abs(zeta) + std::sqrt(1 + zeta * zeta));
        const double cosine = 1 / std::sqrt(1 + tangent * tangent), sine = cosine * tangent;
        for (std::size_t i = 0; i < vectors[p].size(); ++i) {
          const double x = vectors[p][i], y = vectors[q][i];
          vectors[p][i] = cosine * x - sine * y;
          vectors[q][i] = sine * x + cosine * y;
        }
      }
    }
  }
  std::vector<double> result;
  for (const auto& vector : vectors) result.push_back(std::sqrt(dot(vector, vector)));
  return result;
}

// A matrix U S V^T of random orthogonal U and V (rows of a random matrix after Gram and Schmidt), whose singular values fall
// from 1 to 1 / condition.
Tensor matrix_of_condition(std::int64_t rows, std::int64_t columns, double condition, DType dtype) {
  const std::int64_t side = std::min(rows, columns);
  const auto orthogonal = [side](std::int64_t length, const char* name) {
    std::vector<std::vector<double>> result;
    for (std::int64_t i = 0; i < side; ++i) {
      std::vector<double> next;
      for (std::int64_t j = 0; j < length; ++j)
        next.push_back(random_normal(5, name, static_cast<std::uint64_t>(i * length + j)));
      for (const auto& other : result) {
        const double part = std::inner_product(next.begin(), next.end(), other.begin(), 0.0);
        for (std::size_t j = 0; j < next.size(); ++j) next[j] -= part * other[j];
      }
      const double norm = std::sqrt(std::inner_product(next.begin(), next.end(), next.begin(), 0.0));
      for (double& each : next) each /= norm;
      result.push_back(std::move(next));
    }
    return result;
  };
  const auto u = orthogonal(rows, "u"), v = orthogonal(columns, "v");
  Tensor matrix({rows, columns}, dtype);
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < columns; ++j) {
      double sum = 0;
      for (std::int64_t s = 0; s < side; ++s) {
        const auto k = static_cast<std::size_t>(s);
        const double value = std::pow(condition, -static_cast<double>(s) / static_cast<double>(side - 1));
        sum += u[k][static_cast<std::size_t>(i)] * value * v[k][static_cast<std::size_t>(j)];
      }
      matrix.set(i * columns + j, sum);
    }
  }
  return matrix;
}

// The control: the matrix itself, and one of a condition for which five iterations are too few.
TEST(NewtonSchulz, BringsSingularValuesNearOne) {
  const auto [least_allowed, most_allowed] = std::pair(0.5, 1.5);
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const auto& [rows, columns] : {std::pair(24, 40), {40, 24}, {32, 32}}) {
      const auto ends = [&, m = rows, n = columns](double condition, bool updated) {
        const Tensor matrix = matrix_of_condition(m, n, condition, dtype);
        const std::vector<double> values = singular_values(updated ? orthogonalised(matrix) : matrix);
        return std::pair(*std::ranges::min_element(values), *std::ranges::max_element(values));
      };
      for (const double condition : {1.0, 10.0, 100.0}) {
        const auto [least, most] = ends(condition, true);
        EXPECT_GE(least, least_allowed) << condition;
        EXPECT_LE(most, most_allowed) << condition;
      }
      EXPECT_NEAR(ends(100, false).first, 0.01, 1e-5);
      EXPECT_LT(ends(1e6, true).first, least_allowed);
    }
  }
}

// bf16 has eight bits of a number; the control is that it rounds at all.
TEST(NewtonSchulz, BringsSingularValuesNearOneInBf16) {
  for (const auto& [rows, columns] : {std::pair(24, 40), {40, 24}, {32, 32}}) {
    const Tensor matrix = matrix_of_condition(rows, columns, 10, DType::f32), same = matrix.clone();
    const Tensor exact = orthogonalised(matrix), rounded = orthogonalised(same, true);
    EXPECT_EQ(rounded.dtype(), DType::f32);
    double most = 0;
    for (std::int64_t i = 0; i < exact.size(); ++i) most = std::max(most, std::abs(exact.at(i) - rounded.at(i)));
    EXPECT_GT(most, 1e-5);
    EXPECT_LT(most, 0.1);
    EXPECT_THAT(singular_values(rounded), testing::Each(testing::AllOf(testing::Ge(0.4), testing::Le(1.6))));
  }
}

TEST(NewtonSchulz, LeavesAMatrixOfZerosAsItIs) {
  const Tensor zeros = Tensor::zeros({3, 5}, DType::f32);
  EXPECT_THAT(values(orthogonalised(zeros)), testing::Each(0.0));
}

}  // namespace
}  // namespace stretto
