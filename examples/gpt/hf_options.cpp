#include "hf_options.hpp"

#include <CLI/CLI.hpp>

#include "fail.hpp"
#include "hf/hf_config.hpp"

namespace gpt {

void add_hf_options(CLI::App& app, HfOptions& options) {
  app.add_option("--load-hf", options.load,
                 "Directory of a GPT-2 of Hugging Face's transformers whose weights, and sizes, to begin with");
  app.add_option("--export-hf", options.export_to,
                 "Directory to write the model to at the end, for Hugging Face's transformers");
}

void take_hf_sizes(const CLI::App& app, const HfOptions& options, ModelShape& model) {
  if (options.load.empty()) return;
  const ModelShape saved = read_hf_config(options.load);
  const auto take = [&](const char* flag, std::int64_t& size, std::int64_t its, bool may_be_less = false) {
    if (app.count(flag) == 0) size = its;
    require(size == its || (may_be_less && size < its), "{} {} contradicts the {} of {}/config.json; leave it out.", flag,
            size, its, options.load);
  };
  take("--num-layers", model.layers, saved.layers);
  take("--hidden-size", model.hidden, saved.hidden);
  take("--num-attention-heads", model.heads, saved.heads);
  take("--vocab-size", model.vocabulary, saved.vocabulary);
  take("--seq-length", model.sequence, saved.sequence, true);
}

}  // namespace gpt
