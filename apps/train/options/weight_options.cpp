#include "apps/train/options/weight_options.hpp"

#include <CLI/CLI.hpp>

#include "apps/common/fail.hpp"

namespace apps {

using stretto::ModelFiles;

void add_weight_options(CLI::App& app, WeightOptions& options) {
  app.add_option("--load-hf", options.load_hf,
                 "Directory of Hugging Face's transformers with a GPT-2, Llama, Mistral, Qwen 2 or Qwen 3 to begin with");
  app.add_option("--load-gguf", options.load_gguf, "GGUF file with a Llama, Qwen 2 or Qwen 3 to begin with");
  app.add_option("--export-hf", options.export_hf,
                 "Directory to write the model to at the end, for Hugging Face's transformers; adapters are merged into it");
  app.add_option("--load-adapter", options.load_adapter,
                 "Directory of Hugging Face's peft with an adapter to begin with; it says all that --lora flags say");
  app.add_option("--save-adapter", options.save_adapter, "Directory to write the adapter to at the end, for peft");
}

std::optional<ModelFiles> WeightOptions::files() const {
  require(load_hf.empty() || load_gguf.empty(), "--load-hf {} and --load-gguf {} are two models; leave one out.", load_hf,
          load_gguf);
  if (!load_hf.empty()) return ModelFiles::of_directory(load_hf);
  if (!load_gguf.empty()) return ModelFiles::of_gguf(load_gguf);
  return std::nullopt;
}

}  // namespace apps
