#pragma once
#include <CLI/App.hpp>
#include <string>

#include "stretto/models/training_options.hpp"

namespace apps {

struct CommandLine;

// Adds the flags of parameter servers. The options must outlive the app's parsing.
void add_server_options(CLI::App& app, stretto::ServerOptions& options);
// Behind parsing: throws Error(invalid_argument) for flags that do not go with --servers.
void check_server_options(const CLI::App& app, const CommandLine& line);
// "bounded=2", as --consistency takes it.
std::string consistency_text(const stretto::Consistency& consistency);

}  // namespace apps
