#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "stretto/models/decoder.hpp"

namespace apps {

// The shape in DIRECTORY/config.json, as Hugging Face's transformers writes it for a GPT-2; `sequence` is its number of
// positions. Throws Error(io) in one sentence if there is no such file, or if it describes a model that computes otherwise
// than Decoder does.
stretto::DecoderShape read_hf_config(const std::string& directory);

// The config.json of GPT2LMHeadModel. end_of_text: the token that begins and ends texts, if there is one.
std::string hf_config_text(const stretto::DecoderShape& shape, std::optional<std::int32_t> end_of_text);

}  // namespace apps
