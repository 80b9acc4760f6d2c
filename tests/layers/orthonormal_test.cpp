// Columns that are made orthonormal, whatever they are.
#include "layers/optimizer/matrices/orthonormal.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "stretto/layers/parameter.hpp"

namespace stretto {
namespace {

using Element = std::function<double(std::int64_t row, std::int64_t column)>;

double normal_element(std::int64_t row, std::int64_t column) {
  return random_normal(1, "column", static_cast<std::uint64_t>(row + 1000 * column));
}

Tensor matrix_of(std::int64_t rows, std::int64_t columns, const Element& element) {
  Tensor matrix({rows, columns}, DType::f32);
  for (std::int64_t i = 0; i < matrix.size(); ++i) matrix.set(i, element(i / columns, i % columns));
  return matrix;
}

double column_product(const Tensor& a, std::int64_t i, const Tensor& b, std::int64_t j) {
  double sum = 0;
  for (std::int64_t row = 0; row < a.rows(); ++row) sum += a.at(row * a.columns() + i) * b.at(row * b.columns() + j);
  return sum;
}

// How far the columns are from being orthonormal.
double defect(const Tensor& matrix) {
  double most = 0;
  for (std::int64_t i = 0; i < matrix.columns(); ++i) {
    for (std::int64_t j = 0; j < matrix.columns(); ++j) {
      most = std::max(most, std::abs(column_product(matrix, i, matrix, j) - (i == j ? 1 : 0)));
    }
  }
  return most;
}

// The largest share of a column of `matrix` that the columns of an orthonormal basis leave out.
double left_out(const Tensor& matrix, const Tensor& basis) {
  double most = 0;
  for (std::int64_t j = 0; j < matrix.columns(); ++j) {
    const double all = column_product(matrix, j, matrix, j);
    double covered = 0;
    for (std::int64_t i = 0; i < basis.columns(); ++i) covered += std::pow(column_product(basis, i, matrix, j), 2);
    if (all > 0) most = std::max(most, std::sqrt(std::max(0.0, all - covered) / all));
  }
  return most;
}

TEST(Orthonormal, ColumnsSpanWhatTheySpanned) {
  struct Case {
    std::int64_t rows, columns;
    Element element;
  };
  const Case cases[] = {
      {1, 1, normal_element},
      {4, 4, normal_element},
      {300, 5, normal_element},
      {50, 8, [](auto row, auto column) { return normal_element(row, 0) + 1e-3 * normal_element(row, column); }},
      {20, 4, [](auto row, auto column) { return std::pow(1e6, column) * normal_element(row, column); }},
      {30, 6, [](auto row, auto column) { return normal_element(row, column % 2); }},  // of rank 2
      {16, 3, [](auto row, auto column) { return column == 1 ? 0.0 : normal_element(row, column); }},
      {9, 4, [](auto, auto) { return 0.0; }},
      {6, 3, [](auto row, auto) { return row == 0 ? 1.0 : 0.0; }},
      {8, 2, [](auto row, auto column) { return 1e-30 * normal_element(row, column); }}};
  for (const Case& each : cases) {
    const Tensor before = matrix_of(each.rows, each.columns, each.element), after = before.clone(), again = before.clone();
    make_orthonormal(after);
    make_orthonormal(again);
    EXPECT_LT(defect(after), 1e-6) << each.rows << "x" << each.columns;
    EXPECT_LT(left_out(before, after), 1e-3) << each.rows << "x" << each.columns;
    for (std::int64_t i = 0; i < after.size(); ++i) EXPECT_EQ(after.at(i), again.at(i));
  }
  EXPECT_GT(defect(matrix_of(300, 5, normal_element)), 1) << "the control";
}

TEST(Orthonormal, AsManyColumnsAsRowsSpanEverything) {
  const Tensor matrix = matrix_of(7, 7, normal_element);
  make_orthonormal(matrix);
  EXPECT_LT(left_out(matrix_of(7, 20, [](auto row, auto column) { return normal_element(row, column + 50); }), matrix),
            1e-3);
}

TEST(Orthonormal, NumbersThatAreNoneAreNotHidden) {
  for (const double bad : {std::numeric_limits<double>::infinity(), std::nan("")}) {
    for (const std::int64_t bad_column : {0, 2}) {
      const Tensor matrix = matrix_of(12, 3, [&](auto row, auto column) {
        return row == 5 && column == bad_column ? bad : normal_element(row, column);
      });
      make_orthonormal(matrix);
      bool all_finite = true;
      for (std::int64_t i = 0; i < matrix.size(); ++i) all_finite = all_finite && std::isfinite(matrix.at(i));
      EXPECT_FALSE(all_finite);
    }
  }
}

}  // namespace
}  // namespace stretto
