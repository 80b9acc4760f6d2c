#pragma once
#include "stretto/layers/adapter.hpp"
#include "stretto/layers/decoder_shape.hpp"
#include "stretto/layers/layer_cost.hpp"
#include "stretto/layers/recompute.hpp"
#include "stretto/layers/tensor_parallel.hpp"

namespace stretto {

// The cost of the parts of a decoder for one microbatch, as its layers say it. All functions build the records of one block,
// or of all if they may have different adapters.
struct DecoderCost {
  LayerCost embeddings;
  LayerCost block;  // that with the most parameters, if adapters differ
  LayerCost head;   // the last norm and the logits
  LayerCost loss;
  std::int64_t table = 0;  // parameters that embeddings and head both count

  // Parameters of a rank with so many blocks, and with either end of the model.
  double parameters(std::int64_t blocks, bool has_embeddings, bool has_head) const;
};
// tokens.level is taken from `recompute`.
STRETTO_API DecoderCost decoder_cost(const DecoderShape& shape, const TensorParallel& tensor_parallel,
                                     const RecomputeOptions& recompute, CostedTokens tokens,
                                     const AdapterOptions& adapters = {});

STRETTO_API std::int64_t parameters_of(const DecoderShape& shape);  // of the whole model

// Floating-point operations per token of a forward pass, in a block and in the head: of the products, and 4 for each element
// of the width and token of a sequence in attention. The causal mask's half is not subtracted.
struct DecoderOperations {
  double block = 0, head = 0;
};
STRETTO_API DecoderOperations forward_operations(const DecoderShape& shape);
// Returns those of the whole model per trained token, forward and backward: three times as many. (PaLM's 6 per parameter,
// Chowdhery et al. 2022, counts norms, biases and position embeddings, too, which multiply nothing.)
// With adapters, what they add and what is frozen counts as it is: about twice the forward pass.
STRETTO_API double flops_per_token(const DecoderShape& shape, const AdapterOptions& adapters = {});

}  // namespace stretto
