#pragma once
#include <optional>
#include <vector>

#include "stretto/overlap/gradient_buckets.hpp"

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
// Independent of simulate_step: it uses measured bucket times, and is cheap enough to run inside a training step.
STRETTO_API double step_seconds(const StepTimes& times, const std::vector<bool>& postponed);
// Finds flags that make the step short: repeatedly postpones the bucket that shortens it most, until no bucket shortens
// it. On a tie it takes the first in backward, which forward needs last. More than 64 buckets are treated as 64 runs of
// neighbours. Cost: at most min(n, 64)^2 / 2 calls of step_seconds for n buckets, each in O(n). The planner tries these
// flags, too.
STRETTO_API std::vector<bool> best_postponed(const StepTimes& times);

// The minimum of each number, to remove disturbances from the measurements of several steps.
STRETTO_API StepTimes least(StepTimes one, const StepTimes& other);

// Measures the times of one step in which nothing is postponed. The trainer calls its functions when the events happen;
// on a GPU they mark places in computation(). Only one thread may use an object.
class STRETTO_API StepMeasurement {
 public:
  explicit StepMeasurement(std::size_t gradients);  // the step begins
  void needed(std::size_t gradient);                // forward is about to use this gradient's parameter
  void computed();                                  // backward has ended
  void updated(double seconds);                     // the optimizer took `seconds`

  // The result, after the step; the same on all ranks. Collective over the buckets' group. Computation times are those
  // of the slowest rank; communication times are those of the fastest, which waited for no other rank. element_bytes:
  // bytes of a parameter's element. On a GPU it blocks until the step is done.
  StepTimes of(const GradientBuckets& buckets, const std::vector<Tensor>& gradients, std::size_t element_bytes) const;

 private:
  // Seconds from the beginning of the step to a place in computation().
  double until(const Work& place) const { return place.times().done - begin_.times().done; }

  Work begin_, computed_;  // places in computation()
  double update_ = 0;
  std::vector<std::optional<Work>> needed_;  // by gradient: the first call of needed()
};

// Measures the three steps after the one in which the order of backward is learned, and then chooses the buckets to
// postpone. Only one thread may use an object.
class STRETTO_API PostponementChoice {
 public:
  // element_bytes: bytes of a parameter's element.
  PostponementChoice(std::size_t gradients, std::size_t element_bytes)
      : gradients_(gradients), element_bytes_(element_bytes) {}

  // Training steps until the choice is made: one in which the order is learned, and those that are measured.
  static constexpr int steps_to_settle = 4;

  bool is_made() const { return measured_ == steps_to_measure; }
  void begin_step(const GradientBuckets& buckets);
  // Like StepMeasurement's functions; no effect in steps that are not measured.
  void needed(std::size_t gradient);
  void computed();
  void updated(double seconds);
  // Collective over the buckets' group until the choice is made. Returns the flags in the step that makes it, else
  // nothing.
  std::optional<std::vector<bool>> end_step(const GradientBuckets& buckets, const std::vector<Tensor>& gradients);

 private:
  static constexpr int steps_to_measure = steps_to_settle - 1;
  std::size_t gradients_, element_bytes_;
  std::optional<StepMeasurement> step_;
  std::optional<StepTimes> times_;  // the minimum of each number so far
  int measured_ = 0;
};

}  // namespace stretto
