#pragma once
#include <string>

#include "stretto/layers/weight_file.hpp"
#include "stretto/models/trainer.hpp"

namespace apps {

// Models as Hugging Face's transformers keeps them: a directory of config.json and model.safetensors (or several files that
// model.safetensors.index.json names), whose linear weights are [in, out].

// How such a directory holds a parameter. positions: rows of wpe.weight in the file, of which the model takes the first.
stretto::ForeignTensor hf_tensor(const stretto::Parameter& parameter, const std::string& prefix, std::int64_t positions);

// Throws Error(io), in one sentence that names the tensor, if the directory does not hold exactly the weights of such a
// model. Ignores what transformers ignores: lm_head.weight, which is the embedding table, and the masks attn.bias and
// attn.masked_bias of old versions.
void check_hf_weights(const std::string& directory, const stretto::DecoderShape& shape);

// Reads the weights that this rank updates. Not collective; afterwards all ranks must call trainer.optimizer().restore(0).
void load_hf(stretto::Trainer& trainer, const std::string& directory);

// The tokens of an exported model, for its config.json.
struct HfTokens {
  std::string vocabulary_file, merges_file;  // copied; or empty
  std::optional<std::int32_t> end_of_text;
};
// Collective. Writes a directory that GPT2LMHeadModel.from_pretrained takes, in fp32; it appears under its name when it is
// complete. Throws Error(io) if it cannot be written.
void export_hf(stretto::Trainer& trainer, const std::string& directory, const HfTokens& tokens);
// Throws Error(io) if the directory exists and is not empty, or cannot be made, which it tries.
void check_hf_export(const std::string& directory);

}  // namespace apps
