#pragma once
#include <CLI/App.hpp>
#include <string>

#include "stretto/models/decoder.hpp"

namespace apps {

// Models of Hugging Face's transformers.
struct HfOptions {
  std::string load;       // directory whose weights training begins with
  std::string export_to;  // directory to write at the end
};

// The options must outlive the app's parsing.
void add_hf_options(CLI::App& app, HfOptions& options);
}  // namespace apps
