#include "apps/train/options/model_options.hpp"

#include <CLI/CLI.hpp>

#include "apps/common/fail.hpp"
#include "apps/train/data/data_file.hpp"
#include "stretto/models/families.hpp"

namespace apps {

using namespace stretto;

namespace {

// Llama's MLP is two thirds of 4 hidden wide, rounded up to a multiple of 256.
std::int64_t usual_llama_width(std::int64_t hidden) { return (8 * hidden / 3 + 255) / 256 * 256; }

DecoderShape only_sizes(const DecoderShape& shape) {
  return {.layers = shape.layers,
          .hidden = shape.hidden,
          .heads = shape.heads,
          .sequence = shape.sequence,
          .vocabulary = shape.vocabulary};
}

}  // namespace

void add_model_options(CLI::App& app, ModelFlags& flags) {
  DecoderShape& sizes = flags.sizes;
  app.add_option("--model", flags.model, "gpt2, llama, or the config.json of a GPT-2, Llama, Mistral, Qwen 2 or Qwen 3")
      ->capture_default_str();
  app.add_option("--num-layers", sizes.layers, "Transformer blocks")->capture_default_str();
  app.add_option("--hidden-size", sizes.hidden, "Width of the residual stream")->capture_default_str();
  app.add_option("--num-attention-heads", sizes.heads, "Attention heads")->capture_default_str();
  app.add_option("--num-key-value-heads", sizes.kv_heads, "With --model llama, heads of keys and values; as many when 0");
  app.add_option("--head-dim", sizes.head_size, "With --model llama, elements of a head; width / heads when 0");
  app.add_option("--ffn-hidden-size", sizes.mlp_width,
                 "Width of the MLP; when 0, 4 hidden, and of a llama 8/3 hidden, up to a multiple of 256");
  app.add_option("--rope-theta", sizes.rope_theta, "With --model llama, base of the rotary positions' wavelengths")
      ->capture_default_str();
  app.add_flag("--untied", flags.untied, "With --model llama, the head has weights of its own");
  app.add_option("--seq-length", sizes.sequence, "Tokens of a sequence")->capture_default_str();
  app.add_option("--vocab-size", sizes.vocabulary, "Rows of the embedding table; bytes need 256, GPT-2's tokens 50257")
      ->capture_default_str();
}

DecoderShape model_of(const CLI::App& app, const ModelFlags& flags) {
  DecoderShape sizes = flags.sizes;
  if (flags.model == "gpt2") {
    for (const char* const flag : {"--num-key-value-heads", "--head-dim", "--rope-theta", "--untied"}) {
      require(app.count(flag) == 0, "{} is not for --model gpt2; give --model llama, or leave it out.", flag);
    }
    return sizes;
  }
  if (flags.model == "llama") {
    if (sizes.mlp_width == 0) sizes.mlp_width = usual_llama_width(sizes.hidden);
    sizes.tied = !flags.untied;
    return llama_shape(sizes);
  }
  const DecoderShape shape = decoder_shape_from_config(DataFile(flags.model).text(), flags.model);
  ModelFlags others = flags;
  others.model.clear();
  return saved_model(app, others, shape, flags.model, true);
}

DecoderShape saved_model(const CLI::App& app, const ModelFlags& flags, const DecoderShape& saved, const std::string& file,
                         bool may_be_shorter) {
  DecoderShape model = saved.filled();
  for (const auto& [flag, size] : size_flags) {
    if (app.count(flag) == 0) continue;
    const std::int64_t given = flags.sizes.*size;
    const bool is_shorter = size == &DecoderShape::sequence && may_be_shorter && given < saved.*size;
    require(given == model.*size || is_shorter, "{} {} contradicts the {} of {}; leave it out.", flag, given, model.*size,
            file);
    if (is_shorter) model.*size = given;
  }
  require(app.count("--rope-theta") == 0 || flags.sizes.rope_theta == saved.rope_theta,
          "--rope-theta {} contradicts the {} of {}; leave it out.", flags.sizes.rope_theta, saved.rope_theta, file);
  require(app.count("--untied") == 0 || !saved.tied, "--untied contradicts the tied head of {}; leave it out.", file);
  if (app.count("--model") == 0 || flags.model.empty()) return model;
  const std::string family = family_name(saved);
  if (flags.model == "gpt2" || flags.model == "llama") {
    require(flags.model == family, "--model {} contradicts the {} of {}; leave it out.", flags.model, family, file);
  } else {
    DecoderShape same = decoder_shape_from_config(DataFile(flags.model).text(), flags.model).filled();
    same.sequence = model.sequence;
    require(same == model, "--model {} is another model than that of {}; leave it out.", flags.model, file);
  }
  return model;
}

std::string model_note(const DecoderShape& shape) {
  return shape.filled() == only_sizes(shape).filled() ? "gpt2" : config_text(shape);
}

}  // namespace apps
