#pragma once
#include <map>
#include <string>
#include <vector>

#include "stretto/layers/training_memory.hpp"
#include "trainer.hpp"

namespace gpt {

// What the first rank of a pipeline stage needs for training, by formula: no rank is started.
struct StagePlan {
  stretto::TrainingMemory memory;
  // Bytes in a step, by group; without norm, loss and times. An estimate at ZeRO stage 3 without a pipeline, where a unit
  // may stay from one use to the next; and at stages 2 and 3 with schedules that split backward, where gradients of norms
  // come before those of other weights, and a unit may be summed more or less often than there are microbatches.
  std::map<std::string, std::int64_t> sent;
  std::int64_t all_sent() const;
};
struct TrainingPlan {
  std::int64_t ranks = 0;
  std::int64_t parameters = 0;            // of the whole model
  std::vector<StagePlan> stages;          // of the pipeline, or one
  std::size_t needs_most_memory() const;  // a stage
  std::size_t sends_most() const;         // likewise
};
TrainingPlan plan_training(const TrainerOptions& options, const stretto::MeshShape& mesh);
// With the schedule that options.check() returned.
TrainingPlan plan_training(const TrainerOptions& options, const stretto::MeshShape& mesh, const stretto::Schedule& schedule);

// The lines that stretto-train prints of the plan: of the stage that needs most memory, and of the one that sends most.
std::string memory_table(const TrainingPlan& plan);
std::string traffic_table(const TrainingPlan& plan);
// After the first step, with what this process's memory then held.
std::string memory_table_with_measured(const stretto::TrainingMemory& plan);
// {"ranks", "parameters", "stage", "memory": {"values", "gradients", "optimizer", "activations", "buffers"},
// "sending_stage", "sent": {GROUP: bytes}}: memory is of the stage that needs most, sent of the one that sends most.
void write_plan(const TrainingPlan& plan, const std::string& file);

}  // namespace gpt
