#pragma once
#include <CLI/App.hpp>
#include <string>

#include "model.hpp"

namespace gpt {

// Models of Hugging Face's transformers.
struct HfOptions {
  std::string load;       // directory whose weights training begins with
  std::string export_to;  // directory to write at the end
};

// The options must outlive the app's parsing.
void add_hf_options(CLI::App& app, HfOptions& options);
// Call it after the parsing: takes the sizes that no flag gives from config.json of the directory to load. Throws
// Error(invalid_argument) for a flag that contradicts it. --seq-length may be shorter: the first positions are taken.
void take_hf_sizes(const CLI::App& app, const HfOptions& options, ModelShape& model);

}  // namespace gpt
