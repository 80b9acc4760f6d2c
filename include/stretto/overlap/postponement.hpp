#pragma once
#include <optional>
#include <vector>

#include "stretto/overlap/gradient_buckets.hpp"

// Which buckets of gradients to postpone: the link's time is divided between backward, where it can hide sums, and the next
// forward, where it can hide gathers, so that neither is left over (Centauri; Chen et al. 2024). What is postponed lies
// spread among the rest: forward then needs it no faster than the link brings it, and in backward the link falls nowhere far
// behind.
namespace stretto {

// A bucket, in seconds. needed and ready count from the beginning of a step in which computation waits for nothing.
struct BucketTimes {
  double needed = 0;          // by forward: the first of its parameters
  double ready = 0;           // in backward: its last gradient
  double reduce_scatter = 0;  // of the gradients
  double gather_gradients = 0;
  double gather_parameters = 0;  // which may have fewer bits
  double update = 0;             // of all its parameters by the optimizer
};

struct StepTimes {
  double compute = 0;                // when backward has ended
  int ranks = 1;                     // of the group, which shares the update of postponed buckets
  std::vector<BucketTimes> buckets;  // in the order of backward
};

// A model of its own beside simulate_step, which plans steps that nobody has run: this one is fed with what was measured of
// each bucket, and is so cheap that it decides inside a step of training. The planner tries what it chooses, too.
// How long a step takes when these buckets are postponed, a flag for each: forward begins while they are gathered, the last
// bucket first, and waits where one is needed that is not there; backward and the sums; the update.
STRETTO_API double step_seconds(const StepTimes& times, const std::vector<bool>& postponed);
// Those that make the step short: one after the other the bucket that shortens it most, of equal ones the first of backward,
// which forward needs last; until none does. Of more than 64 buckets, as many runs of neighbours are chosen in their place.
// Of n buckets, at most min(n, 64)^2 / 2 steps are worked out, in a time proportional to n each.
STRETTO_API std::vector<bool> best_postponed(const StepTimes& times);

// Of each number the least: what several steps have measured, without what disturbed one of them.
STRETTO_API StepTimes least(StepTimes one, const StepTimes& other);

// Measures a step for that, in which nothing is postponed: it is told when what happens, or on a GPU, where in computation()
// it will. One thread uses it.
class STRETTO_API StepMeasurement {
 public:
  explicit StepMeasurement(std::size_t gradients);  // the step begins
  void needed(std::size_t gradient);                // forward is going to use its parameter
  void computed();                                  // backward has ended
  void updated(double seconds);                     // the optimizer took so long

  // Collective over the buckets' group, after the step; the same on all ranks: of computation what the slowest rank
  // measured, of communication what the fastest did, which waited for nobody. element_bytes: of the parameters. A GPU is
  // waited for.
  StepTimes of(const GradientBuckets& buckets, const std::vector<Tensor>& gradients, std::size_t element_bytes) const;

 private:
  // Seconds from the beginning to a place in computation().
  double until(const Work& place) const { return place.times().done - begin_.times().done; }

  Work begin_, computed_;  // these places
  double update_ = 0;
  std::vector<std::optional<Work>> needed_;  // by gradient: the first time
};

// Measures the three steps behind the one in which the order of backward is learned, and chooses. One thread uses it.
class STRETTO_API PostponementChoice {
 public:
  // element_bytes: of the parameters.
  PostponementChoice(std::size_t gradients, std::size_t element_bytes)
      : gradients_(gradients), element_bytes_(element_bytes) {}

  // Of training, until the choice is made: one to learn the order and those that are measured.
  static constexpr int steps_to_settle = 4;

  bool is_made() const { return measured_ == steps_to_measure; }
  void begin_step(const GradientBuckets& buckets);
  // As StepMeasurement's; for nothing in steps that are not measured.
  void needed(std::size_t gradient);
  void computed();
  void updated(double seconds);
  // Collective over the buckets' group while the choice is not made; gives it in the step that makes it.
  std::optional<std::vector<bool>> end_step(const GradientBuckets& buckets, const std::vector<Tensor>& gradients);

 private:
  static constexpr int steps_to_measure = steps_to_settle - 1;
  std::size_t gradients_, element_bytes_;
  std::optional<StepMeasurement> step_;
  std::optional<StepTimes> times_;  // of each the least so far
  int measured_ = 0;
};

}  // namespace stretto
