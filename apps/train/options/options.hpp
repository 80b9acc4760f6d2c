#pragma once
#include <optional>

#include "apps/train/options/command_line.hpp"

namespace apps {

// Empty if the command line asked for help, which has then been printed. Throws Error(invalid_argument) in one sentence.
std::optional<CommandLine> parse_command_line(int argc, char** argv);

}  // namespace apps
