#pragma once
#include <CLI/App.hpp>
#include <string>

#include "stretto/models/training_options.hpp"

namespace apps {

// Adds the flags that divide a model into pipeline stages. The options must outlive the app's parsing;
// TrainingOptions::check() judges whether they go together.
void add_pipeline_options(CLI::App& app, stretto::TrainingOptions& options);
// Behind parsing; `steps` are those of the training. Returns the flags of pipemare that were given, if any.
std::string check_pipeline_options(const CLI::App& app, std::int64_t steps, stretto::PipeMareOptions& options);

}  // namespace apps
