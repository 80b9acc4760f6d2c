#pragma once
#include <memory>
#include <string>

#include "stretto/layers/weight_source.hpp"

namespace stretto {

// The tensors of a GGUF file, dequantized to f32 as they are read: F32, F16, BF16, Q8_0, Q4_0 and Q4_1; read() refuses
// others by their type's name. Throws as GgufFile.
std::unique_ptr<WeightSource> gguf_weights(const std::string& path);

}  // namespace stretto
