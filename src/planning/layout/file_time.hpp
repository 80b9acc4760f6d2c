#pragma once
#include "planning/layout/state_time.hpp"

namespace stretto {

// The bytes that a rank reads and writes in its scratch files (TrainingOptions::sharding.offload, recompute.directory) in a
// step.
struct FileTraffic {
  double passes = 0;          // beside forward and backward
  double update = 0;          // beside the update
  double shown = 0;           // of the update: values, which an update apart reads and writes behind the step
  double first_and_last = 0;  // of the update: the first unit's read and the last one's write, beside which nothing runs
  double all() const { return passes + update; }
};
FileTraffic file_traffic(const TrainingOptions& layout, const StateElements& elements);

// The computation of a rank in a step, in seconds.
struct StepComputing {
  double passes = 0;         // forward and backward of all microbatches
  double last_backward = 0;  // of the last microbatch, beside which updates that speculate begin
  double update = 0;
};

// The seconds that a step waits for files: what reading and writing take longer than the computation beside them, and the
// update's first read and last write. No update that speculates is taken back. Throws Error(invalid_argument) for a cluster
// whose files have no rate.
double file_seconds(const TrainingOptions& layout, const StateElements& elements, const StepComputing& computing,
                    const TrainingCluster& cluster);

}  // namespace stretto
