#pragma once
#include <cstdint>

#include "stretto/layers/linear.hpp"

// A transformer block's activations between forward and backward: a block keeps all that backward needs, or less, and then
// computes the rest again. With one block's microbatch of r tokens, a width of h, an MLP of 4 h, e bytes per element and t
// tensor-parallel ranks, a rank keeps r h e times 4 + 12 / t, 2 + 8 / t (selective), 1 (full), or 1 / t (full and divided),
// and some numbers per token (Korthikanti et al. 2022, without dropout, for attention that keeps no scores). Results have
// the same bits at every level. (One exception: on a GPU in 16 bits, where a product and GELU may be one kernel that rounds
// once, a GELU that is computed again is that of the rounded product.)
namespace stretto {

enum class Recompute : std::uint8_t {
  none,
  selective,  // norms' and GELU's results are computed again: no product, and no communication but what ZeRO-3 gathers
  full,       // only the block's input is kept: backward computes the block's forward again, but for its last projection
};

struct STRETTO_API RecomputeOptions {
  Recompute level = Recompute::none;
  // With Recompute::full: the input is divided over the tensor-parallel ranks, and gathered for backward (ZeRO-R's
  // partitioned activations; Rajbhandari et al. 2020). Costs one all-gather of the input per block and microbatch.
  bool partition = false;

  // Throws Error(invalid_argument), in one sentence, for options that do not go together on so many tensor-parallel ranks.
  void check(int tensor_parallel) const;
};

// A tensor that all ranks of a group hold, and of which each keeps a share of the rows only until the tensor is needed
// again.
class STRETTO_API DividedTensor {
 public:
  DividedTensor() = default;
  // Copies this rank's share. With a group of one rank, or if `divided` is false, keeps the tensor itself.
  DividedTensor(const Tensor& whole, const TensorParallel& tensor_parallel, bool divided);
  // Starts to gather the shares on the group's stream; does nothing if they are being gathered already, or for no tensor.
  void gather();
  // The tensor, gathered if gather() has not been called. Blocks until it is there; on a GPU, computation() waits.
  Tensor whole();

 private:
  TensorParallel tensor_parallel_;
  Shape shape_;
  Tensor share_;  // the tensor itself where it is not divided
  Tensor whole_;
  Work gathered_;
};

}  // namespace stretto
