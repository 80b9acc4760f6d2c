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
                         CostedTokens tokens, const AdapterOptions& adapters) {
  DecoderShape some = shape;
  if (!adapters.any()) some.layers = 1;
  Parameters parameters;
  tokens.level = recompute.level;
  return Decoder(parameters, some, tensor_parallel, recompute, ModelCut::whole(some.layers),
                 std::make_shared<LocalAttention>(), adapters)
      .cost(tokens);
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

double flops_per_token(const DecoderShape& shape, const AdapterOptions& adapters) {
  const DecoderOperations forward = forward_operations(shape);
  if (adapters.any()) {
    const DecoderCost cost = decoder_cost(shape, {}, {}, {.count = shape.sequence}, adapters);
    const DecoderCost plain = decoder_cost(shape, {}, {}, {.count = shape.sequence});
    const double attention = 3 * (forward.block - plain.block.forward.operations() / static_cast<double>(shape.sequence));
    const double products = static_cast<double>(shape.layers) * cost.block.operations() + cost.head.operations();
    return static_cast<double>(shape.layers) * attention + products / static_cast<double>(shape.sequence);
  }
  return 3 * (static_cast<double>(shape.layers) * forward.block + forward.head);
}

}  // namespace stretto
