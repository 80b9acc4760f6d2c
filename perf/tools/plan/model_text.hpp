#pragma once
#include <string>

#include "stretto/layers/decoder_shape.hpp"

namespace plan_tool {

// A model as --model says it: "gpt:layers=96,hidden=12288,heads=96,seq=2048,vocab=51200", "llama:" with kv_heads, mlp,
// head_size and untied=1 besides, or the path of a config.json, which ",seq=8192" may follow. Throws
// Error(invalid_argument), in one sentence.
stretto::DecoderShape model_from_text(const std::string& text);
std::string config_file_of(const std::string& text);  // the path of its config.json; empty for a model of numbers

}  // namespace plan_tool
