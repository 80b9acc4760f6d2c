#pragma once
#include <CLI/App.hpp>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "stretto/models/training_options.hpp"

namespace apps {

struct CommandLine;

// --relayout-at STEP FLAGS: the layout in which training goes on behind a step. --relayout-on-signal FLAGS: behind the step
// in which SIGUSR2 comes.
struct Relayout {
  std::int64_t step = 0;
  bool on_signal = false;
  std::string flags;
  stretto::TrainingOptions trainer;

  std::string name() const;  // "--relayout-at 40", or "--relayout-on-signal"
};

struct RelayoutFlags {
  std::vector<std::pair<std::int64_t, std::string>> at;
  std::vector<std::string> on_signal;
};
// `flags` must outlive the app's parsing; relayouts_of() must be called after it.
void add_relayout_options(CLI::App& app, RelayoutFlags& flags);
// Reads the flags of each layout, which changes what it names of the layout before. Throws Error(invalid_argument).
std::vector<Relayout> relayouts_of(const RelayoutFlags& flags, const stretto::TrainingOptions& first);
// Throws Error(invalid_argument) for what cannot change its layout.
void check_relayouts(const CommandLine& line, int ranks);
void check_rejoin(const CommandLine& line, int ranks);  // the same for --rejoin, in which the layout gets more ranks

}  // namespace apps
