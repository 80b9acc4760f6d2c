#pragma once
#include <CLI/App.hpp>

#include "stretto/layers/stage_division.hpp"

namespace gpt {

// Adds the flags that divide a model into pipeline stages. The options must outlive the app's parsing;
// TrainerOptions::check() judges whether they go together.
void add_pipeline_options(CLI::App& app, int& stages, stretto::StageDivision& options);

}  // namespace gpt
