#pragma once
#include "stretto/layers/attention.hpp"

// Heads by group: the heads that share one head of keys and values, of which `each` is the number (1 for keys and values
// themselves).
namespace stretto {

inline std::int64_t heads_a_group(const AttentionCore::Shape& shape) { return shape.heads / shape.kv_heads; }

// The heads of the groups from `first` on.
inline kernels::TokenHeads from_group(kernels::TokenHeads heads, std::int64_t first, std::int64_t each,
                                      std::int64_t head_size) {
  heads.first_column += first * each / heads.parts * head_size;
  return heads;
}

// Heads that lie as the given ones, so many columns in all, in another tensor without other columns between them.
inline kernels::TokenHeads like(const kernels::TokenHeads& heads, const Tensor& tensor, std::int64_t columns,
                                std::int64_t first_column = 0) {
  return {tensor, first_column, heads.parts, heads.parts > 1 ? columns / heads.parts : 0};
}

// Copies heads of so many columns in all. Both have equally many parts.
inline void copy_heads(const kernels::TokenHeads& from, const kernels::TokenHeads& to, std::int64_t columns) {
  for (std::int64_t part = 0; part < from.parts; ++part) {
    kernels::copy_columns(from.tensor, from.first_column + part * from.part_step, to.tensor,
                          to.first_column + part * to.part_step, columns / from.parts);
  }
}

}  // namespace stretto
