#include "collectives/calibration/least_squares.hpp"

#include <cmath>
#include <limits>
#include <optional>

namespace stretto {
namespace {

using Row = std::array<double, 4>;

// Least squares over the unknowns in use (Gauss-Jordan on the normal equations); the others are 0.
std::optional<Row> solve(const std::vector<Row>& rows, unsigned in_use) {
  std::array<std::array<double, 5>, 4> system{};
  for (const Row& row : rows) {
    for (int i = 0; i < 4; ++i) {
      for (int j = 0; j < 4; ++j) system[i][j] += row[i] * row[j];
      system[i][4] += row[i];
    }
  }
  Row x{};
  for (int i = 0; i < 4; ++i) {
    if ((in_use >> i & 1U) == 0) continue;
    if (system[i][i] <= 0) return std::nullopt;
    for (int k = 0; k < 4; ++k) {
      if (k == i || (in_use >> k & 1U) == 0) continue;
      const double factor = system[k][i] / system[i][i];
      for (int j = 0; j < 5; ++j) system[k][j] -= factor * system[i][j];
    }
  }
  for (int i = 0; i < 4; ++i) {
    if ((in_use >> i & 1U) != 0) x[i] = system[i][4] / system[i][i];
    if (!(x[i] >= 0) || !std::isfinite(x[i])) return std::nullopt;
  }
  return x;
}

double error_of(const std::vector<Row>& rows, const Row& x) {
  double sum = 0;
  for (const Row& row : rows) {
    double value = -1;
    for (int i = 0; i < 4; ++i) value += row[i] * x[i];
    sum += value * value;
  }
  return sum;
}

}  // namespace

// With four unknowns, trying every set of non-zero ones is short and always finds the best.
std::array<double, 4> fit_not_negative(const std::vector<Row>& rows) {
  Row best{};
  double least = std::numeric_limits<double>::infinity();
  for (unsigned in_use = 1; in_use < 16; ++in_use) {
    const auto x = solve(rows, in_use);
    if (!x || error_of(rows, *x) >= least) continue;
    best = *x;
    least = error_of(rows, *x);
  }
  return best;
}

}  // namespace stretto
