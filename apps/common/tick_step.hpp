#pragma once
#include <cmath>

namespace apps {

// The least distance of the marks of an axis that is 1, 2 or 5 times a power of ten, and no less than this.
inline double tick_step(double least) {
  const double power = std::pow(10, std::floor(std::log10(least)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= least) return factor * power;
  }
  return 10 * power;
}

}  // namespace apps
