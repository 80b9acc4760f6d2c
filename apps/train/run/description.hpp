#pragma once
#include <string>
#include <vector>

#include "apps/train/options/command_line.hpp"
#include "apps/train/report/training_plan.hpp"
#include "stretto/models/trainer.hpp"

namespace apps {

// Rank 0 prints these before the first step. They tell of the device and the model; of the layout, which may change later;
// and of what lies in files. ranks: of all replicas.
std::vector<std::string> model_description(const CommandLine& line, const stretto::Trainer& trainer);
std::vector<std::string> layout_description(const CommandLine& line, stretto::Trainer& trainer, int ranks);
std::vector<std::string> file_description(stretto::Trainer& trainer);
// And this behind the last step: the command that uses the checkpoint, or that there is none.
std::string next_command(const CommandLine& line);

}  // namespace apps
