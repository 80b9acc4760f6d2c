#pragma once
#include <string>

#include "stretto/models/training_options.hpp"

namespace apps {

// The flags of stretto-train for what a search of layouts chooses, or was told to keep: the mesh, the schedule, ZeRO,
// recomputation and the microbatch. The model, the types and the step's sequences are not among them.
std::string layout_flags(const stretto::TrainingOptions& layout);

}  // namespace apps
