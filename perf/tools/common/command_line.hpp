#pragma once
#include <CLI/CLI.hpp>
#include <cstdio>

#include "common/fail.hpp"

namespace perf {

// Returns false if the command line asks for help, which has then been printed. Throws Error(invalid_argument) in one
// sentence.
inline bool parse_flags(CLI::App& app, int argc, char** argv, const char* verb = "") {
  try {
    app.parse(argc, argv);
    return true;
  } catch (const CLI::CallForHelp&) {
    std::fputs(app.help().c_str(), stdout);
    return false;
  } catch (const CLI::ParseError& error) {
    fail(stretto::ErrorCode::invalid_argument, "{}; {}--help lists the flags.", error.what(), verb);
  }
}

}  // namespace perf
