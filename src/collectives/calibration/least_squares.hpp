#pragma once
#include <array>
#include <vector>

namespace stretto {

// The x >= 0 with the least sum of squares of row . x - 1. These are relative errors, since each row was divided by its
// measured time.
std::array<double, 4> fit_not_negative(const std::vector<std::array<double, 4>>& rows);

}  // namespace stretto
