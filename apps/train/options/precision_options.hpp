#pragma once
#include <CLI/App.hpp>

#include "stretto/models/trainer.hpp"

namespace apps {

// Adds the flags for the types of values and gradients, the loss scale, and what backward computes again. The options must
// outlive the app's parsing.
void add_precision_options(CLI::App& app, stretto::TrainingOptions& options);
// Call it after the parsing. Throws Error(invalid_argument) for flags that would have no effect.
void check_precision_options(const CLI::App& app, const stretto::TrainingOptions& options);

}  // namespace apps
