#include "layers/optimizer/matrices/orthonormal.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <vector>

namespace stretto {
namespace {

using Column = std::span<double>;

// If projections leave a smaller share of a column of f32, then the rest is rounding.
constexpr double dependent = 1e-6;

// Eight sums of neighbouring elements, which a compiler computes with vector instructions.
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

// The unit vector of which projections onto the k directions take least: at most k/rows of its square.
std::size_t least_covered(std::span<const Column> directions, std::size_t rows) {
  std::vector<double> covered(rows, 0);
  for (const Column direction : directions) {
    for (std::size_t i = 0; i < rows; ++i) covered[i] += direction[i] * direction[i];
  }
  return static_cast<std::size_t>(std::ranges::min_element(covered) - covered.begin());
}

}  // namespace

// The method is Gram and Schmidt's. A second projection removes what rounding in the first one leaves (Giraud et al. 2005).
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
