#include "model.hpp"

#include "stretto/device.hpp"
#include "stretto/kernels.hpp"

namespace gpt {

using namespace stretto;

namespace {

constexpr Initial embedding_initial{0, 0.02};

std::vector<TransformerBlock> make_blocks(Parameters& parameters, const ModelShape& shape,
                                          const TensorParallel& tensor_parallel, const RecomputeOptions& recompute) {
  std::vector<TransformerBlock> blocks;
  for (std::int64_t i = 0; i < shape.layers; ++i) {
    blocks.emplace_back(parameters, "h." + std::to_string(i) + ".",
                        TransformerShape{.hidden = shape.hidden, .heads = shape.heads, .layers = shape.layers},
                        tensor_parallel, recompute);
  }
  return blocks;
}

}  // namespace

Batch Batch::of(const std::vector<std::int32_t>& tokens, const std::vector<std::int32_t>& targets, std::int64_t length) {
  const MemoryScope activations(MemoryKind::activations);
  const auto count = static_cast<std::int64_t>(tokens.size());
  std::vector<std::int32_t> positions;
  for (std::int64_t i = 0; i < count; ++i) positions.push_back(static_cast<std::int32_t>(i % length));
  return {count / length, length, Tensor::of(tokens), targets.empty() ? Tensor() : Tensor::of(targets),
          Tensor::of(positions)};
}

Batch Batch::part(std::int64_t first, std::int64_t count) const {
  const auto of = [&](const Tensor& all) { return all ? all.view(first * length, {count * length}) : Tensor(); };
  return {count, length, of(tokens), of(targets), of(positions)};
}

Model::Model(Parameters& parameters, const ModelShape& shape, const TensorParallel& tensor_parallel,
             const RecomputeOptions& recompute)
    : shape_(shape),
      table_(parameters, "wte", shape.vocabulary, shape.hidden, embedding_initial, tensor_parallel),
      positions_(&parameters.add({.name = "wpe.weight",
                                  .global_shape = {shape.sequence, shape.hidden},
                                  .first = {0, 0},
                                  .extents = {shape.sequence, shape.hidden},
                                  .replicated_over = token_axes | Axis::tensor,
                                  .sum_gradient_over = token_axes,
                                  .initial = embedding_initial})),
      blocks_(make_blocks(parameters, shape, tensor_parallel, recompute)),
      norm_(parameters, "ln_f", shape.hidden, TransformerShape().norm_epsilon),
      cross_entropy_(tensor_parallel) {}

void Model::add_positions(const Batch& batch, const Tensor& x, ParameterUse& use) const {
  const InUse in_use(use, {positions_}, Pass::forward);
  const Tensor places(x.shape(), x.dtype());
  kernels::embedding_forward(batch.positions, 0, positions_->value, places);
  kernels::add(x, places, x);
}

void Model::add_positions_gradient(const Batch& batch, const Tensor& dx, ParameterUse& use) const {
  const InUse in_use(use, {positions_}, Pass::backward);
  kernels::embedding_backward(batch.positions, 0, dx, positions_->gradient);
}

Tensor Model::logits(const Batch& batch, Saved& saved, ParameterUse& use) const {
  const MemoryScope activations(MemoryKind::activations);
  Tensor x = table_.embed(batch.tokens, use);
  add_positions(batch, x, use);
  saved.blocks.resize(blocks_.size());
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    x = blocks_[i].forward(x, batch.sequences, batch.length, saved.blocks[i], use);
  }
  saved.normed = norm_.forward(x, saved.norm, use);
  return table_.logits(saved.normed, use);
}

Model::Loss Model::loss(const Batch& batch, std::optional<double> backward_factor, ParameterUse& use) const {
  const MemoryScope activations(MemoryKind::activations);
  Saved saved;
  Loss loss;
  Tensor logits = this->logits(batch, saved, use);
  cross_entropy_.forward(logits, batch.targets, first_column(), loss);
  if (backward_factor) {
    cross_entropy_.backward(logits, batch.targets, first_column(), loss, *backward_factor);
    backward(batch, std::move(logits), saved, use);
  }
  return loss;
}

// Frees activations as soon as nothing needs them.
void Model::backward(const Batch& batch, Tensor dlogits, Saved& saved, ParameterUse& use) const {
  blocks_.back().prefetch(saved.blocks.back());
  Tensor dnormed = table_.logits_backward(saved.normed, dlogits, use);
  dlogits = saved.normed = {};
  const Tensor dx = Tensor::zeros(dnormed.shape(), dnormed.dtype());
  norm_.backward(dnormed, saved.norm, dx, use);
  dnormed = {};
  saved.norm = {};
  for (std::size_t i = blocks_.size(); i-- > 0;) {
    if (i > 0) blocks_[i - 1].prefetch(saved.blocks[i - 1]);
    blocks_[i].backward(dx, saved.blocks[i], use);
  }
  add_positions_gradient(batch, dx, use);
  table_.embed_backward(batch.tokens, dx, use);
}

}  // namespace gpt
