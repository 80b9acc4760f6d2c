#pragma once
#include <cstdint>
#include <string>

#include "stretto/layers/tensor_parallel.hpp"

// A transformer block's activations between forward and backward: a block keeps all that backward needs, or less, and then
// computes the rest again. TransformerBlock::cost() says how much. With one block's microbatch of r tokens, a width of h, e
// bytes per element and t tensor-parallel ranks, a rank of a GPT-2 keeps r h e times 4 + 12 / t, 2 + 8 / t (selective), 1
// (full), or 1 / t (full and divided), and some numbers per token (Korthikanti et al. 2022, without dropout, for attention
// that keeps no scores). With sequence parallelism these are 16 / t (2 + 14 / t with keeps_gathered), 10 / t, and 1 / t.
// Results have the same bits at every level. (One exception: on a GPU in 16 bits, where a product and GELU may be one kernel
// that rounds once, a GELU that is computed again is that of the rounded product.)
namespace stretto {

enum class Recompute : std::uint8_t {
  none,
  selective,  // results of norms and activations are computed again: no product, and no communication but what ZeRO-3
              // gathers
  full,       // only the block's input is kept: backward computes the block's forward again, but for its last projection
};
STRETTO_API const char* name(Recompute level);  // as the enumerator

struct STRETTO_API RecomputeOptions {
  Recompute level = Recompute::none;
  // With Recompute::full: the input is divided over the tensor-parallel ranks, and gathered for backward (ZeRO-R's
  // partitioned activations; Rajbhandari et al. 2020). Costs one all-gather of the input per block and microbatch.
  bool partition = false;
  // With Recompute::full: a directory in which each block's input lies between forward and backward, in a scratch file of
  // this rank (ZeRO-Infinity). It is written behind forward, and read while backward computes the block behind it. On the
  // host, and not divided. Empty: it stays in memory.
  std::string directory = {};

  // Throws Error(invalid_argument), in one sentence, for options that do not go together in such a group.
  void check(const TensorParallel& tensor_parallel) const;
};

}  // namespace stretto
