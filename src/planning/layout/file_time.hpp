#pragma once
#include "planning/layout/state_time.hpp"

namespace stretto {

// The bytes that a rank reads and writes in its scratch files (TrainingOptions::sharding.offload, recompute.directory) in a
// step.
struct FileTraffic {
  double passes = 0;          // beside forward and backward
  double update = 0;          // beside the update
  double first_and_last = 0;  // of the update: the first unit's read and the last one's write, beside which nothing runs
  double all() const { return passes + update; }
};
FileTraffic file_traffic(const TrainingOptions& layout, const StateElements& elements);

// The seconds that a step waits for files: what reading and writing take longer than the computation beside them, and the
// update's first read and last write. computing: of forward and backward; update: of the update's computation. Throws
// Error(invalid_argument) for a cluster whose files have no rate.
double file_seconds(const TrainingOptions& layout, const StateElements& elements, double computing, double update,
                    const TrainingCluster& cluster);

}  // namespace stretto
