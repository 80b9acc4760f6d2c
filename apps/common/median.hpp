#pragma once
#include <algorithm>
#include <vector>

namespace apps {

// With two values in the middle, returns the larger one. `values` must not be empty.
inline double median(std::vector<double> values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace apps
