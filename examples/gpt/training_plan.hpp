#pragma once
#include <map>
#include <string>

#include "stretto/layers/training_memory.hpp"
#include "trainer.hpp"

namespace gpt {

// The memory that a rank needs for training and the bytes that it sends in a step, by formula: no rank is started.
struct TrainingPlan {
  std::int64_t ranks = 0;
  std::int64_t parameters = 0;               // of the whole model
  stretto::TrainingMemory memory;            // of one rank, the first
  std::map<std::string, std::int64_t> sent;  // bytes of one rank in a step, by group; without norm and loss, 8 bytes each
};
TrainingPlan plan_training(const TrainerOptions& options, const stretto::MeshShape& mesh);

// The lines that stretto-train prints of the plan. After the first step, with what this process's memory then held.
std::string memory_table(const stretto::TrainingMemory& plan);
std::string memory_table_with_measured(const stretto::TrainingMemory& plan);
std::string traffic_table(const TrainingPlan& plan);
// {"ranks", "parameters", "memory": {"values", "gradients", "optimizer", "activations", "buffers"}, "sent": {GROUP: bytes}}
void write_plan(const TrainingPlan& plan, const std::string& file);

}  // namespace gpt
