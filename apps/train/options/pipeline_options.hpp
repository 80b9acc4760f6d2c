#pragma once
#include <CLI/App.hpp>

#include "stretto/models/stage_division.hpp"

namespace apps {

// Adds the flags that divide a model into pipeline stages. The options must outlive the app's parsing;
// TrainingOptions::check() judges whether they go together.
void add_pipeline_options(CLI::App& app, int& stages, stretto::StageDivision& options);

}  // namespace apps
