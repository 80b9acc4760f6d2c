#pragma once
#include <CLI/App.hpp>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "stretto/models/training_options.hpp"

namespace apps {

struct CommandLine;

// --relayout-at STEP FLAGS: the layout in which training goes on behind a step.
struct Relayout {
  std::int64_t step = 0;
  std::string flags;
  stretto::TrainingOptions trainer;
};

// The option must outlive the app's parsing; relayouts_of() must be called after it.
using RelayoutFlags = std::vector<std::pair<std::int64_t, std::string>>;
void add_relayout_options(CLI::App& app, RelayoutFlags& flags);
// Reads the flags of each layout, which changes what it names of the layout before. Throws Error(invalid_argument).
std::vector<Relayout> relayouts_of(const RelayoutFlags& flags, const stretto::TrainingOptions& first);
// Throws Error(invalid_argument) for what cannot change its layout.
void check_relayouts(const CommandLine& line, int ranks);
void check_rejoin(const CommandLine& line, int ranks);  // the same for --rejoin, in which the layout gets more ranks

}  // namespace apps
