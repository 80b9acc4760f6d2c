#pragma once
#include <CLI/App.hpp>

#include "stretto/layers/diloco.hpp"

namespace apps {

// Adds the flags of replicas that agree every so many steps (DiLoCo). The options must outlive the app's parsing.
void add_diloco_options(CLI::App& app, stretto::DiLoCoOptions& options);
// Call it after the parsing. Throws Error(invalid_argument) for flags that would have no effect, and for numbers that do not
// go together.
void check_diloco_options(const CLI::App& app, const stretto::DiLoCoOptions& options);

}  // namespace apps
