#pragma once
#include <algorithm>
#include <vector>

namespace apps {

// Of two in the middle, the larger one. There must be a value.
inline double median(std::vector<double> values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace apps
