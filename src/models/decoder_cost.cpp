#include "stretto/models/decoder_cost.hpp"

#include "stretto/models/decoder.hpp"

namespace stretto {

double DecoderCost::parameters(std::int64_t blocks, bool has_embeddings, bool has_head) const {
  double count = static_cast<double>(blocks) * static_cast<double>(block.parameters);
  if (has_embeddings) count += static_cast<double>(embeddings.parameters);
  if (has_head) count += static_cast<double>(head.parameters);
  return has_embeddings && has_head ? count - static_cast<double>(table) : count;
}

DecoderCost decoder_cost(const DecoderShape& shape, const TensorParallel& tensor_parallel, const RecomputeOptions& recompute,
                         CostedTokens tokens) {
  DecoderShape one = shape;
  one.layers = 1;
  Parameters parameters;
  tokens.level = recompute.level;
  return Decoder(parameters, one, tensor_parallel, recompute).cost(tokens);
}

std::int64_t parameters_of(const DecoderShape& shape) {
  const DecoderCost cost = decoder_cost(shape, {}, {}, {.count = 1});
  return shape.layers * cost.block.parameters + cost.embeddings.parameters + cost.head.parameters - cost.table;
}

DecoderOperations forward_operations(const DecoderShape& shape) {
  const DecoderCost cost = decoder_cost(shape, {}, {}, {.count = 1});
  DecoderOperations operations{cost.block.forward.operations(), cost.head.forward.operations()};
  for (const AttendingHeads& its : cost.block.attention) {
    operations.block += 4 * static_cast<double>(its.heads * its.head_size * shape.sequence);
  }
  return operations;
}

double flops_per_token(const DecoderShape& shape) {
  const DecoderOperations forward = forward_operations(shape);
  return 3 * (static_cast<double>(shape.layers) * forward.block + forward.head);
}

}  // namespace stretto
