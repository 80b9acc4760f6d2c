#pragma once
#include <CLI/App.hpp>
#include <set>
#include <string>

#include "stretto/planning/layout_search.hpp"

namespace apps {

struct CommandLine;

// --layout auto: the layout is chosen by prediction (stretto/planning/layout_search.hpp).
struct LayoutOptions {
  bool automatic = false;
  std::string cluster;          // of a dry run
  std::set<std::string> given;  // the flags that fix a part of the layout
};

// The options must outlive the app's parsing; check_layout_options() must be called after it.
void add_layout_options(CLI::App& app, LayoutOptions& options);
// Throws Error(invalid_argument) for flags that do not go together.
void check_layout_options(const CLI::App& app, CommandLine& line);

// The layouts of so many ranks that the command line leaves open.
stretto::LayoutSpace layout_space(const CommandLine& line, int ranks, std::int64_t memory_bytes);
// The command line with the fastest layout's flags, of a search of the space. Throws Error(invalid_argument) if there is
// none.
CommandLine with_layout(const CommandLine& line, const stretto::LayoutSpace& space, const stretto::LayoutSearch& search);
// What was chosen, and why.
std::string layout_report(const stretto::LayoutSearch& search);

}  // namespace apps
