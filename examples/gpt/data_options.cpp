#include "data_options.hpp"

#include <CLI/CLI.hpp>

namespace gpt {

void add_data_options(CLI::App& app, DataOptions& options) {
  app.add_option("--train-data", options.train,
                 "What to train on: any file, or tokens in llm.c's, nanoGPT's or Megatron-LM's format");
  app.add_option("--val-data", options.validation, "What to validate on; the last tenth of --train-data when left out");
  app.add_option_function<std::string>(
         "--data-format", [&](const std::string& name) { options.format = data_format_from_name(name); },
         "bytes, llm.c, nanogpt, megatron; auto: llm.c by its header, Megatron-LM by the .idx beside the .bin, else bytes")
      ->default_str("auto");
}

}  // namespace gpt
