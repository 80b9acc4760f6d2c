#pragma once
#include <CLI/App.hpp>

namespace apps {

// Throws Error(invalid_argument) for a command line that was not parsed, in one sentence. A flag that is not known is told
// with the one that was meant: another program's name of it, or one that is spelled alike.
[[noreturn]] void refuse_command_line(const CLI::App& app, const CLI::ParseError& error);

// Returns false if the command line asks for help, which has then been printed. Throws as refuse_command_line() does.
bool parse_flags(CLI::App& app, int argc, char** argv);

}  // namespace apps
