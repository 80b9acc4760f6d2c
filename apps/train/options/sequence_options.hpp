#pragma once
#include <CLI/App.hpp>

#include "stretto/models/trainer.hpp"

namespace apps {

// Adds the flags that divide sequences. The options must outlive the app's parsing; TrainingOptions::check() judges whether
// they go together.
void add_sequence_options(CLI::App& app, stretto::TrainingOptions& options);
// Call it after the parsing. Throws Error(invalid_argument) for a --cp-layout that has no effect.
void check_sequence_options(const CLI::App& app, const stretto::TrainingOptions& options);

}  // namespace apps
