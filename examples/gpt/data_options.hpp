#pragma once
#include <CLI/App.hpp>

#include "data/token_data.hpp"

namespace gpt {

// Adds the flags that say what is trained on. The options must outlive the app's parsing.
void add_data_options(CLI::App& app, DataOptions& options);

}  // namespace gpt
