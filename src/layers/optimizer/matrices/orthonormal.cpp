#include "layers/optimizer/matrices/orthonormal.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <vector>

namespace stretto {
namespace {

using Column = std::span<double>;

// A column of f32 of which others leave a smaller share is rounding.
constexpr double dependent = 1e-6;

// Sums of their own for neighbouring elements, which a compiler computes side by side.
double dot(Column one, Column other) {
  std::array<double, 8> sums{};
  std::size_t i = 0;
  for (; i + sums.size() <= one.size(); i += sums.size()) {
    for (std::size_t lane = 0; lane < sums.size(); ++lane) sums[lane] += one[i + lane] * other[i + lane];
  }
  double sum = 0;
  for (const double each : sums) sum += each;
  for (; i < one.size(); ++i) sum += one[i] * other[i];
  return sum;
}

void project_out(std::span<const Column> directions, Column x) {
  for (const Column direction : directions) {
    const double along = dot(direction, x);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] -= along * direction[i];
  }
}

// Of the unit vectors, the one with the most that the directions leave out: at least 1 - k/rows of its square.
std::size_t least_covered(std::span<const Column> directions, std::size_t rows) {
  std::vector<double> covered(rows, 0);
  for (const Column direction : directions) {
    for (std::size_t i = 0; i < rows; ++i) covered[i] += direction[i] * direction[i];
  }
  return static_cast<std::size_t>(std::ranges::min_element(covered) - covered.begin());
}

}  // namespace

// As Gram and Schmidt do, with a second projection for what rounding leaves of the first (Giraud et al. 2005).
void make_orthonormal(const Tensor& matrix) {
  const auto rows = static_cast<std::size_t>(matrix.rows()), columns = static_cast<std::size_t>(matrix.columns());
  auto* const elements = matrix.data<float>();
  std::vector<double> all(rows * columns);  // column by column
  std::vector<Column> done;
  for (std::size_t c = 0; c < columns; ++c) {
    const Column x(&all[c * rows], rows);
    for (std::size_t i = 0; i < rows; ++i) x[i] = elements[i * columns + c];
    const double before = std::sqrt(dot(x, x));
    project_out(done, x);
    if (std::isfinite(before) && std::sqrt(dot(x, x)) <= dependent * before) {
      std::ranges::fill(x, 0);
      x[least_covered(done, rows)] = 1;
      project_out(done, x);
    }
    project_out(done, x);
    const double norm = std::sqrt(dot(x, x));
    for (double& each : x) each /= norm;
    done.push_back(x);
  }
  for (std::size_t c = 0; c < columns; ++c) {
    for (std::size_t i = 0; i < rows; ++i) elements[i * columns + c] = static_cast<float>(done[c][i]);
  }
}

}  // namespace stretto
