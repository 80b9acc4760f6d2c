#pragma once
#include <string>
#include <vector>

#include "stretto/layers/decoder_shape.hpp"
#include "stretto/models/model_cut.hpp"
#include "stretto/overlap/schedule.hpp"

namespace stretto {

// How a model is divided over the stages of a pipeline, and in which order they compute.
struct STRETTO_API StageDivision {
  std::string schedule_name = "1f1b";  // or another ScheduleKind's name, or the path of a file in the text form
  int virtual_stages = 0;              // parts of the model that each stage holds; 0: as many as the schedule has
  std::vector<std::int64_t> blocks;    // of each part of the model; empty: divided evenly (divide_blocks)

  // Both throw Error(invalid_argument) in one sentence for what does not fit together, in the words of stretto-train's
  // flags.
  Schedule schedule(int stages, std::int64_t microbatches) const;
  ModelCut cut(const DecoderShape& model, const Schedule& schedule, int stage) const;
};

}  // namespace stretto
