#pragma once
#include <cstdint>
#include <vector>

#include "stretto/layers/weight_file.hpp"

namespace stretto {

// The sizes of attention whose queries, keys and values are one parameter, as packed_heads() has them.
struct PackedHeads {
  std::int64_t heads, kv_heads, head_size;
};

// The rows of the parameter of q, k and v, weights or biases. Each argument is whole: heads * head_size rows of q, and
// kv_heads * head_size rows of k and of v, head behind head, of one tensor or of three. `order` is that of each head's rows
// of q and k.
std::vector<ForeignRows> packed_qkv_rows(const PackedHeads& sizes, const ForeignRows& q, const ForeignRows& k,
                                         const ForeignRows& v, RowOrder order);

}  // namespace stretto
