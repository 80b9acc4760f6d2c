#pragma once
#include <algorithm>
#include <cmath>

namespace perf {

// How many iterations last about that many seconds. trial(n) performs n of them and returns how long that took in seconds:
// the same number on every rank, so that all of them perform as many.
template <class Trial>
int iterations_lasting(double seconds, const Trial& trial) {
  const double enough = 0.1 * seconds;  // to tell how long an iteration takes
  for (double iterations = 1;;) {
    double took = trial(static_cast<int>(iterations));
    for (int again = 0; again < 2 && took >= enough; ++again) {  // unless a rank was interrupted
      took = std::min(took, trial(static_cast<int>(iterations)));
    }
    const double wanted = seconds / std::max(took, 1e-9) * iterations;
    if (took >= enough || iterations >= 1e8) return static_cast<int>(std::clamp(wanted, 3.0, 1e8));
    iterations = std::floor(std::clamp(0.2 * wanted, 2 * iterations, 100 * iterations));
  }
}

}  // namespace perf
