#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "stretto/layers/decoder_shape.hpp"
#include "stretto/layers/weight_file.hpp"

// Families of decoders as Hugging Face's transformers has them: gpt2, llama, mistral, qwen2 and qwen3. A family knows what
// config.json says of a shape, and which tensors of a file make a parameter of a Decoder.
namespace stretto {

// The shape of a Llama of these sizes: RMS norms, rotary positions, a gated SiLU, no biases.
STRETTO_API DecoderShape llama_shape(DecoderShape sizes);

// The shape that a config.json describes; `sequence` is its number of positions. Throws Error(io), in one sentence that
// names `file` and the key, for text that is no such file, and for a model that computes otherwise than a Decoder of any
// shape.
STRETTO_API DecoderShape decoder_shape_from_config(const std::string& config, const std::string& file);

// The config.json of the family that has such a shape. end_of_text: the token that begins and ends texts, if there is one.
// Throws Error(invalid_argument), in one sentence, if no family has it.
STRETTO_API std::string config_text(const DecoderShape& shape, std::optional<std::int32_t> end_of_text = std::nullopt);

// The model_type of that family.
STRETTO_API std::string family_name(const DecoderShape& shape);

// Returns the rows of a file that make a parameter. positions: the rows of learned positions there, of which the model takes
// the first. Names are those of a model with a head, such as GPT2LMHeadModel.
STRETTO_API std::vector<ForeignRows> foreign_rows(const DecoderShape& shape, const Parameter& parameter,
                                                  std::int64_t positions);

}  // namespace stretto
