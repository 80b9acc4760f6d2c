#pragma once
#include <functional>
#include <string>
#include <vector>

#include "stretto/models/families.hpp"

namespace stretto {

// The model in a GGUF file: its shape, as the metadata says it, and the rows of the file that make each parameter.
struct GgufModel {
  DecoderShape shape;
  std::function<std::vector<ForeignRows>(const Parameter&)> rows;
};
// Throws Error(io), in one sentence, for a file that is no such file or of a model that a Decoder cannot compute.
GgufModel gguf_model(const std::string& path);

}  // namespace stretto
