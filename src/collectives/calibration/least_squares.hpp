#pragma once
#include <array>
#include <vector>

namespace stretto {

// Returns the x >= 0 that minimizes the sum over all rows of (row . x - 1)^2. The caller divides each row by its measured
// time, which makes these relative errors.
std::array<double, 4> fit_not_negative(const std::vector<std::array<double, 4>>& rows);

}  // namespace stretto
