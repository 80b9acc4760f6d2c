#pragma once
#include <vector>

// The choice of the gradient buckets to postpone. It divides the link's time between backward, during which sums are
// hidden, and the next forward, during which gathers are hidden, so that both are used (Centauri; Chen et al. 2024).
// The postponed buckets are spread among the others: then forward needs them no faster than the link brings them, and
// in backward the link never falls far behind.
namespace stretto {

// Times of a bucket, in seconds. needed and ready count from the beginning of a step in which computation waits for
// nothing.
struct BucketTimes {
  double needed = 0;          // when forward first uses one of its parameters
  double ready = 0;           // when backward has its last gradient
  double reduce_scatter = 0;  // seconds for its gradients
  double gather_gradients = 0;
  double gather_parameters = 0;  // differs from gather_gradients if parameters have another width
  double update = 0;             // seconds for the optimizer to update all its parameters
};

struct StepTimes {
  double compute = 0;                // when backward ends
  int ranks = 1;                     // of the group, over which updates of postponed buckets are divided
  std::vector<BucketTimes> buckets;  // in the order of backward
};

// Predicts how long a step takes if the buckets with a set flag are postponed: forward starts while they are gathered,
// the last bucket first, and waits for a bucket that it needs; then backward with the sums; then the update.
// Cheap enough to run inside a training step.
double step_seconds(const StepTimes& times, const std::vector<bool>& postponed);
// Finds flags that make the step short: repeatedly postpones the bucket that shortens it most, until no bucket shortens
// it. On a tie it takes the first in backward, which forward needs last. More than 64 buckets are treated as 64 runs of
// neighbours. Cost: at most min(n, 64)^2 / 2 calls of step_seconds for n buckets, each in O(n).
std::vector<bool> best_postponed(const StepTimes& times);

}  // namespace stretto
