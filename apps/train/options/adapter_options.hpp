#pragma once
#include <CLI/App.hpp>
#include <map>
#include <string>
#include <vector>

#include "stretto/layers/adapter.hpp"

namespace apps {

// The values of the flags for adapters.
struct AdapterFlags {
  std::int64_t rank = 0;
  double alpha = stretto::AdapterOptions().alpha;
  double dropout = 0;
  bool uses_root = false;
  std::string init = "uniform", targets, layers, rank_pattern, alpha_pattern, modules_to_save;
  std::string base = "plain";
  std::vector<std::string> with;  // DIR or DIR,weight=W each
};

// What --with-adapter says: a directory of peft, and how often its adapters count. Their name among AdapterOptions::others
// is their number: "1".
struct WithAdapter {
  std::string directory, name;
  double weight = 1;
};
// Throws Error(invalid_argument) for text that says something else.
std::vector<WithAdapter> with_adapters(const std::vector<std::string>& texts);

// Adds the flags. `flags` must outlive the app's parsing.
void add_adapter_options(CLI::App& app, AdapterFlags& flags);
// Call it after the parsing. Throws Error(invalid_argument) for values that cannot be, and for flags without --lora; whether
// they fit the model, AdapterOptions::check() says.
stretto::AdapterOptions adapters_of(const CLI::App& app, const AdapterFlags& flags);
// Without --lora on the command line, sets all flags to what a checkpoint's notes say, if it has adapters. Throws
// Error(invalid_argument) for flags that contradict them.
void take_saved_adapters(const CLI::App& app, const std::map<std::string, std::string>& notes, AdapterFlags& flags);
// Sets all flags but --base to what a directory of peft says. Throws as AdapterFiles.
void take_adapter_files(const CLI::App& app, const std::string& directory, AdapterFlags& flags);
// The values that a checkpoint keeps, by flag; none without adapters.
std::map<std::string, std::string> adapter_notes(const AdapterFlags& flags);

}  // namespace apps
