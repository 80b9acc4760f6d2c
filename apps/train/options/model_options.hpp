#pragma once
#include <CLI/App.hpp>
#include <string>

#include "stretto/layers/decoder_shape.hpp"

namespace apps {

struct ModelFlags {
  std::string model = "gpt2";  // or llama, or the path of a config.json
  stretto::DecoderShape sizes;
  bool untied = false;
};

struct SizeFlag {
  const char* flag;
  std::int64_t stretto::DecoderShape::*size;
};
inline constexpr SizeFlag size_flags[] = {
    {"--num-layers", &stretto::DecoderShape::layers},         {"--hidden-size", &stretto::DecoderShape::hidden},
    {"--num-attention-heads", &stretto::DecoderShape::heads}, {"--vocab-size", &stretto::DecoderShape::vocabulary},
    {"--seq-length", &stretto::DecoderShape::sequence},       {"--num-key-value-heads", &stretto::DecoderShape::kv_heads},
    {"--head-dim", &stretto::DecoderShape::head_size},        {"--ffn-hidden-size", &stretto::DecoderShape::mlp_width}};
inline constexpr std::size_t required_size_flags = 5;  // the first ones, which say all of a GPT-2

// The flags must outlive the app's parsing.
void add_model_options(CLI::App& app, ModelFlags& flags);

// The shape that the flags say. Throws Error(invalid_argument) for flags that do not go together.
stretto::DecoderShape model_of(const CLI::App& app, const ModelFlags& flags);

// The shape of a saved model, which `file` says. Throws Error(invalid_argument) for a flag that contradicts it.
// may_be_shorter: --seq-length may be below the saved one.
stretto::DecoderShape saved_model(const CLI::App& app, const ModelFlags& flags, const stretto::DecoderShape& saved,
                                  const std::string& file, bool may_be_shorter);

// Returns the value that a checkpoint keeps for --model: "gpt2", or the config.json of another shape.
std::string model_note(const stretto::DecoderShape& shape);

}  // namespace apps
