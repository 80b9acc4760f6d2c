#pragma once
#include <cstdint>
#include <map>
#include <string>

#include "stretto/models/training_options.hpp"
#include "stretto/planning/training_memory.hpp"

namespace stretto {

// What the first rank of a pipeline stage needs for training, by formula: no rank is started.
struct STRETTO_API StagePlan {
  TrainingMemory memory;
  // Bytes in a step, by group; without norm, loss and times. Of the steps after 1-bit Adam has frozen v, or after PowerSGD
  // has begun. What replicas exchange ("diloco") is the mean of the steps of a round, rounded down; what their new values
  // take inside a replica is left out. An estimate at ZeRO stage 3 without a pipeline, where a unit may stay from one use to
  // the next; and at stages 2 and 3 with schedules that split backward, where gradients of norms come before those of other
  // weights, and a unit may be summed more or less often than there are microbatches.
  std::map<std::string, std::int64_t> sent;
  std::int64_t all_sent() const;
};
// With the schedule that options.check() returned. Throws Error(invalid_argument) with servers, which it does not count.
// Cost: the records of the model's parameters, and the stage's list.
STRETTO_API StagePlan plan_stage(const TrainingOptions& options, const Schedule& schedule, int stage);

}  // namespace stretto
