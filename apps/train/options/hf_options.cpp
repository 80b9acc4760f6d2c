#include "apps/train/options/hf_options.hpp"

#include <CLI/CLI.hpp>

namespace apps {

void add_hf_options(CLI::App& app, HfOptions& options) {
  app.add_option("--load-hf", options.load,
                 "Directory of a GPT-2 of Hugging Face's transformers whose weights, and sizes, to begin with");
  app.add_option("--export-hf", options.export_to,
                 "Directory to write the model to at the end, for Hugging Face's transformers");
}

}  // namespace apps
