#pragma once
#include <string>
#include <vector>

#include "model.hpp"
#include "stretto/overlap/schedule.hpp"

namespace gpt {

// How a model is divided over the stages of a pipeline, and in which order they compute.
struct PipelineOptions {
  std::string schedule_name = "1f1b";  // or another ScheduleKind's name, or the path of a file in the text form
  int virtual_stages = 0;              // parts of the model that each stage holds; 0: as many as the schedule has
  std::vector<std::int64_t> blocks;    // of each part of the model; empty: divided evenly (divide_blocks)

  // Both throw Error(invalid_argument) in one sentence for what does not fit together.
  stretto::Schedule schedule(int stages, std::int64_t microbatches) const;
  ModelCut cut(const ModelShape& model, const stretto::Schedule& schedule, int stage) const;
};

// "stage 0: 2 + 1 layers, stage 1: 3 layers": of each stage's parts in their order.
std::string text_of(const ModelCut& cut);

}  // namespace gpt
