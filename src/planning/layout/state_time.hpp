#pragma once
#include "planning/layout/block_time.hpp"

namespace stretto {

// What a step takes for the state of a stage's parameters, beside forward and backward, in seconds.
struct StateTime {
  double exposed = 0;  // sums of gradients and gathered values that nothing hides
  double update = 0;   // the norm, and the optimizer
};

// A stage's parameters on one rank.
struct StageParameters {
  double blocks = 0;
  bool has_embeddings = false, has_head = false;
  double elements(const TrainingOptions& layout) const;
};

// `microbatch`: the stage's time of one microbatch, all its chunks, beside which sums and gathers run.
StateTime state_time(const TrainingOptions& layout, const StageParameters& parameters, const PartTime& microbatch,
                     const TrainingCluster& cluster, const TrainingSystem& system, CollectiveCosts& costs);

}  // namespace stretto
