#pragma once
#include <CLI/App.hpp>
#include <vector>

#include "stretto/require_same.hpp"

namespace apps {

// Every flag that must be the same on all ranks, with the value that was given or its default. Of a path, which may be
// another one on each host, only whether it was given. Numbers are written in one way: 1e-3 is 0.001.
std::vector<stretto::NamedValue> flag_values(const CLI::App& app);

}  // namespace apps
