#pragma once
#include <functional>
#include <string>
#include <vector>

#include "stretto/models/families.hpp"

namespace stretto {

// What the metadata of a GGUF file says of its model, and where the file has the elements of parameters.
struct GgufModel {
  DecoderShape shape;
  std::function<std::vector<ForeignRows>(const Parameter&)> rows;
};
// Throws Error(io), in one sentence, for a file that is no such file or of a model that a Decoder cannot compute.
GgufModel gguf_model(const std::string& path);

}  // namespace stretto
