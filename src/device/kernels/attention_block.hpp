#pragma once
#include "stretto/kernels.hpp"

// Attention over whole sequences as the block of all queries and all keys, with packed operands.
namespace stretto::kernels {

inline AttentionBlock block_of(const AttentionShape& shape) {
  return {.batch = shape.batch,
          .queries = shape.sequence,
          .keys = shape.sequence,
          .heads = shape.heads,
          .head_size = shape.head_size};
}

inline std::int64_t kv_heads_of(const AttentionBlock& block) { return block.kv_heads > 0 ? block.kv_heads : block.heads; }

// The part of packed rows that begins at `part` times the hidden size: 0 for queries, 1 for keys, 2 for values.
inline TokenHeads heads_of(const AttentionShape& shape, const Tensor& packed, std::int64_t part, std::int64_t parts = 3) {
  const std::int64_t hidden = shape.heads * shape.head_size;
  return {.tensor = packed.reshaped({shape.batch * shape.sequence, parts * hidden}), .first_column = part * hidden};
}

}  // namespace stretto::kernels
