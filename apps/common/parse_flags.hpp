#pragma once
#include <CLI/App.hpp>
#include <span>
#include <string_view>

namespace apps {

struct ForeignName {
  std::string_view foreign;  // another program's name of a flag, without dashes
  const char* own;           // as it is given here, such as "--dtype bf16"
};

// Throws Error(invalid_argument) for a command line that was not parsed, in one sentence that names the app. A flag that is
// not known is told with the one that was meant: a foreign name of it, or one that is spelled alike.
[[noreturn]] void refuse_command_line(const CLI::App& app, const CLI::ParseError& error,
                                      std::span<const ForeignName> foreign = {});

// Returns false if the command line asks for help, which has then been printed. Throws as refuse_command_line() does.
bool parse_flags(CLI::App& app, int argc, char** argv, std::span<const ForeignName> foreign = {});

}  // namespace apps
