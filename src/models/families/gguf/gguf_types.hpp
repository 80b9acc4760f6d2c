#pragma once
#include <cstddef>
#include <cstdint>

namespace stretto {

// A type of tensors in GGUF files. Its elements lie in blocks: so many elements in so many bytes.
struct GgufType {
  std::uint32_t number;  // ggml's
  const char* name;
  std::int64_t block_elements, block_bytes;
  // Writes the elements of `count` blocks, in the arithmetic of f32; null for types that nothing here reads.
  void (*dequantize)(const std::byte* blocks, std::int64_t count, float* to);
};

// Returns the type of ggml's number, or null if there is none.
const GgufType* gguf_type(std::uint32_t number);

}  // namespace stretto
