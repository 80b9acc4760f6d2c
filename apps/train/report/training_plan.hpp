#pragma once
#include <map>
#include <string>
#include <vector>

#include "stretto/models/trainer.hpp"
#include "stretto/models/training_options.hpp"
#include "stretto/planning/stage_plan.hpp"

namespace apps {

using stretto::StagePlan;

struct TrainingPlan {
  std::int64_t ranks = 0;
  std::int64_t parameters = 0;             // of the whole model
  std::vector<stretto::StagePlan> stages;  // of the pipeline, or one
  std::string steps = "a step";            // those in which that is sent
  std::size_t needs_most_memory() const;   // a stage
  std::size_t sends_most() const;          // likewise
};
TrainingPlan plan_training(const stretto::TrainingOptions& options);
// With the schedule that options.check() returned.
TrainingPlan plan_training(const stretto::TrainingOptions& options, const stretto::Schedule& schedule);

// The lines that stretto-train prints of the plan: of the stage that needs most memory, and of the one that sends most.
std::string memory_table(const TrainingPlan& plan);
std::string traffic_table(const TrainingPlan& plan);
// After the first step, with what this process's memory then held.
std::string memory_table_with_measured(const stretto::TrainingMemory& plan);
// {"ranks", "parameters", "stage", "memory": {"values", "gradients", "optimizer", "activations", "buffers"},
// "sending_stage", "sent": {GROUP: bytes}}: memory is of the stage that needs most, sent of the one that sends most.
void write_plan(const TrainingPlan& plan, const std::string& file);

}  // namespace apps
