#pragma once
#include <algorithm>
#include <cmath>

namespace perf {

// The number of iterations that last about `seconds`, the same on every rank. trial(n) performs n iterations and returns
// their duration in seconds, which must be the same on every rank.
template <class Trial>
int iterations_lasting(double seconds, const Trial& trial) {
  const double enough = 0.1 * seconds;  // duration from which the time of an iteration is known well enough
  for (double iterations = 1;;) {
    double took = trial(static_cast<int>(iterations));
    for (int again = 0; again < 2 && took >= enough; ++again) {  // repeated, since a rank may have been interrupted
      took = std::min(took, trial(static_cast<int>(iterations)));
    }
    const double wanted = seconds / std::max(took, 1e-9) * iterations;
    if (took >= enough || iterations >= 1e8) return static_cast<int>(std::clamp(wanted, 3.0, 1e8));
    iterations = std::floor(std::clamp(0.2 * wanted, 2 * iterations, 100 * iterations));
  }
}

}  // namespace perf
