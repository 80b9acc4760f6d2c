#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "stretto/layers/transformer.hpp"

namespace stretto {

// The sizes of a GPT: token and position embeddings, blocks, a last norm, and logits from the tied token embedding.
struct STRETTO_API ModelShape {
  std::int64_t layers = 4, hidden = 192, heads = 6, sequence = 128, vocabulary = 256;
  std::int64_t kv_heads = 0;  // TransformerShape::kv_heads; 0: as many as heads

  TransformerShape block() const {
    TransformerShape shape = TransformerShape::gpt2(hidden, heads, layers);
    if (kv_heads > 0) shape.kv_heads = kv_heads;
    return shape;
  }
  std::int64_t parameters() const;  // of the whole model
  // Floating-point operations per trained token, forward and backward: 6 per parameter, and 12 layers hidden sequence for
  // attention, as in PaLM (Chowdhery et al. 2022) and nanoGPT. The causal mask's half is not subtracted.
  double flops_per_token(std::int64_t parameters) const {
    return 6.0 * static_cast<double>(parameters) + 12.0 * static_cast<double>(layers * hidden * sequence);
  }
};

// The consecutive parts of a model, and the pipeline stages that hold them.
struct STRETTO_API ModelCut {
  std::vector<std::int64_t> blocks;  // of each part; the first part also has the embeddings, the last part the head
  std::vector<int> stages;           // of each part
  int stage = 0;                     // this rank's. Its chunks are its parts, in their order
  static ModelCut whole(std::int64_t blocks) { return {{blocks}, {0}, 0}; }

  // Where the parameters of a part lie, and those of the tied table, which lies where the embeddings are and where the head
  // is.
  Parameters::Place place(std::size_t part) const;
  Parameters::Place place_of_table() const;
};
// "stage 0: 2 + 1 layers, stage 1: 3 layers": of each stage's parts in their order.
STRETTO_API std::string to_string(const ModelCut& cut);

}  // namespace stretto
