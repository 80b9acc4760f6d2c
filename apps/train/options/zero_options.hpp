#pragma once
#include <CLI/App.hpp>

#include "stretto/models/training_options.hpp"

namespace apps {

// Adds the flags that say what data-parallel ranks keep a share of only (ZeRO, ZeRO++), what lies in files, and how far
// ahead they communicate. The options must outlive the app's parsing; Options::check() judges whether they go together.
void add_zero_options(CLI::App& app, stretto::TrainingOptions& options);
// Call it after the parsing. Throws Error(invalid_argument) for flags that would have no effect.
void check_zero_options(const CLI::App& app, const stretto::TrainingOptions& options);

}  // namespace apps
