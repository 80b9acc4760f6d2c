#pragma once
#include <optional>
#include <vector>

#include "stretto/layers/mesh.hpp"

namespace apps {

// A rank that computes longer than the others, and for how long they wait for it, as a share of the step.
struct SlowRank {
  int rank = 0;
  double share = 0;
  bool named = false;  // the share is beyond the threshold, and not by chance
};

// The steps of one rank in an interval.
struct RankSteps {
  std::vector<double> seconds;    // of each step
  std::vector<double> computing;  // those in which no operation blocked the rank
  double preempted = 0;  // seconds of the interval in which the system ran other threads on the cores that the rank needed
};

// The slowest rank of an interval. Ranks of one pipeline stage do equal work and are compared with each other; null if every
// stage has one rank. stage: of each rank. Time for which a rank was preempted longer than the others does not count: on a
// busy machine it hits ranks at random, and it says nothing about the rank.
std::optional<SlowRank> slowest(const std::vector<RankSteps>& ranks, const std::vector<int>& stage, double threshold);

// Finds the slowest rank of every 50 steps, without communication in between.
class Stragglers {
 public:
  static constexpr int interval = 50;  // steps; in fewer of them, chance decides
  static constexpr double usual_threshold = 0.1;

  // mesh must outlive this object.
  Stragglers(const stretto::Mesh& mesh, double threshold);
  // All ranks call it after each step. exposed: the time for which operations blocked the rank. Collective in the last step
  // of an interval, whose slowest rank it returns.
  std::optional<SlowRank> step(double seconds, double exposed);

 private:
  const stretto::Mesh& mesh_;
  double threshold_;
  RankSteps steps_;
  double preempted_before_;
};

}  // namespace apps
