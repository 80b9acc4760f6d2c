#pragma once
#include <CLI/App.hpp>
#include <optional>
#include <string>

#include "stretto/models/model_files.hpp"

namespace apps {

// Weights in files of other tools.
struct WeightOptions {
  std::string load_hf, load_gguf;  // whose weights training begins with
  std::string export_hf;           // directory to write at the end
  // Directories of peft: whose adapter training begins with, and to write at the end.
  std::string load_adapter, save_adapter;

  // The flag and the file or directory whose weights training begins with; empty if none is given.
  std::string flag() const { return load_hf.empty() ? load_gguf.empty() ? "" : "--load-gguf" : "--load-hf"; }
  const std::string& place() const { return load_hf.empty() ? load_gguf : load_hf; }
  // The file that says the model's shape.
  std::string shape_file() const { return load_hf.empty() ? load_gguf : load_hf + "/config.json"; }
  // Throws as ModelFiles.
  std::optional<stretto::ModelFiles> files() const;
};

// The options must outlive the app's parsing.
void add_weight_options(CLI::App& app, WeightOptions& options);

}  // namespace apps
