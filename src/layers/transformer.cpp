#include "stretto/layers/transformer.hpp"

#include <cmath>

#include "core/fail.hpp"
#include "device/stream/kernel_scope.hpp"
#include "stretto/device.hpp"
#include "stretto/kernels.hpp"

namespace stretto {
namespace {

constexpr double deviation = 0.02;  // GPT-2's

Initial into_residual(const TransformerShape& shape) {
  return {0, deviation / std::sqrt(2.0 * static_cast<double>(shape.layers))};
}

// The result of a norm, from its kept input.
Tensor again(const Norm& norm, const Norm::Saved& saved, ParameterUse& use) {
  Norm::Saved same;
  return norm.forward(saved.x, same, use);
}

const TransformerShape& checked(const TransformerShape& shape, const TensorParallel& tensor_parallel) {
  shape.check(tensor_parallel.size());
  return shape;
}

// dx as it is now: weight gradients that are computed later need it, and the layers before this one add to dx.
Tensor kept(const Tensor& dx, const WeightGradients* later) {
  if (later == nullptr) return dx;
  Tensor copy(dx.shape(), dx.dtype());
  as_kernel("copy", [&] { copy.copy_from(dx); });
  return copy;
}

}  // namespace

TransformerShape TransformerShape::gpt2(std::int64_t hidden, std::int64_t heads, std::int64_t layers) {
  require(heads >= 1 && hidden % heads == 0,
          "A hidden size of {} does not divide into {} attention heads; choose a multiple of the heads.", hidden, heads);
  return {.hidden = hidden,
          .heads = heads,
          .kv_heads = heads,
          .head_size = hidden / heads,
          .mlp_width = 4 * hidden,
          .layers = layers};
}

void TransformerShape::check(int tensor_ranks, int ulysses_ranks) const {
  const std::int64_t ranks = std::int64_t{tensor_ranks} * ulysses_ranks;
  require(
      hidden >= 1 && head_size >= 1 && mlp_width >= 1 && layers >= 1,
      "A block of width {} with heads of {} elements and an MLP of width {}, one of {}, computes nothing; give all sizes.",
      hidden, head_size, mlp_width, layers);
  require(heads >= 1 && heads % ranks == 0,
          "{} attention heads do not divide over {} tensor-parallel x {} ulysses ranks; choose a multiple of {}.", heads,
          tensor_ranks, ulysses_ranks, ranks);
  require(kv_heads >= 1 && heads % kv_heads == 0,
          "{} attention heads do not divide over {} heads of keys and values; choose a divisor of the heads.", heads,
          kv_heads);
  require(kv_heads % ranks == 0,
          "{} heads of keys and values do not divide over {} tensor-parallel x {} ulysses ranks; choose a multiple of {}.",
          kv_heads, tensor_ranks, ulysses_ranks, ranks);
}

AttentionLayer::AttentionLayer(Parameters& parameters, const std::string& norm_name, const std::string& name,
                               const TransformerShape& shape, const TensorParallel& tensor_parallel,
                               std::shared_ptr<const AttentionCore> core)
    : local_heads_(checked(shape, tensor_parallel).heads / tensor_parallel.size()),
      local_kv_heads_(shape.kv_heads / tensor_parallel.size()),
      head_size_(shape.head_size),
      core_(std::move(core)),
      norm_(parameters, norm_name, shape.hidden, shape.norm, tensor_parallel),
      qkv_(parameters, name + ".c_attn", shape.hidden, (shape.heads + 2 * shape.kv_heads) * shape.head_size,
           static_cast<int>(shape.heads / shape.kv_heads) + 2, {0, deviation}, tensor_parallel, shape.biases.qkv),
      projection_(parameters, name + ".c_proj", shape.heads * shape.head_size, shape.hidden, into_residual(shape),
                  tensor_parallel, shape.biases.projection) {}

AttentionCore::Shape AttentionLayer::shape_of(const Tokens& tokens) const {
  return {tokens.batch, tokens.length, local_heads_, local_kv_heads_, head_size_};
}

Tensor AttentionLayer::forward(const Tensor& x, const Tokens& tokens, Saved& saved, ParameterUse& use) const {
  const Tensor qkv = qkv_.forward(norm_.forward(x, saved.norm, use), tokens.count(), use, &saved.normed);
  const AttentionCore::Shape shape = shape_of(tokens);
  saved.attended = core_->forward(shape, packed_heads(shape, qkv), saved.core);
  return projection_.forward(saved.attended, x, use);
}

void AttentionLayer::backward(const Tensor& dx, const Tokens& tokens, const Saved& saved, ParameterUse& use,
                              WeightGradients* later) const {
  const AttentionCore::Shape shape = shape_of(tokens);
  Tensor dqkv;
  {
    const Tensor dattended = projection_.backward(saved.attended, kept(dx, later), use, later);
    dqkv = Tensor({tokens.count(), (shape.heads + 2 * shape.kv_heads) * shape.head_size}, dx.dtype());
    core_->backward(dattended, saved.core, packed_heads(shape, dqkv));
  }
  const Tensor normed = saved.normed ? saved.normed : again(norm_, saved.norm, use);
  norm_.backward(qkv_.backward(normed, dqkv, use, later), saved.norm, dx, use);
}

MlpLayer::MlpLayer(Parameters& parameters, const std::string& norm_name, const std::string& name,
                   const TransformerShape& shape, const TensorParallel& tensor_parallel)
    : activation_(shape.activation),
      local_width_(share_of(shape.mlp_width, tensor_parallel.size(), tensor_parallel.rank()).count),
      norm_(parameters, norm_name, shape.hidden, shape.norm, tensor_parallel),
      fc_(parameters, name + ".c_fc", shape.hidden, kernels::products_of(shape.activation) * shape.mlp_width,
          kernels::products_of(shape.activation), {0, deviation}, tensor_parallel, shape.biases.mlp),
      projection_(parameters, name + ".c_proj", shape.mlp_width, shape.hidden, into_residual(shape), tensor_parallel,
                  shape.biases.mlp) {}

void MlpLayer::save(const Tensor& x, std::int64_t tokens, Saved& saved, ParameterUse& use) const {
  const Tensor normed = norm_.forward(x, saved.norm, use);
  saved.activated = Tensor({tokens, local_width_}, x.dtype());
  saved.before_activation = fc_.forward(normed, tokens, use, &saved.normed, {activation_, saved.activated});
}

Tensor MlpLayer::forward(const Tensor& x, std::int64_t tokens, Saved& saved, ParameterUse& use) const {
  save(x, tokens, saved, use);
  return projection_.forward(saved.activated, x, use);
}

Tensor MlpLayer::activated_again(const Tensor& before) const {
  Tensor activated({before.rows(), local_width_}, before.dtype());
  kernels::activation_forward(activation_, before, activated);
  return activated;
}

void MlpLayer::backward(const Tensor& dx, const Saved& saved, ParameterUse& use, WeightGradients* later) const {
  Tensor dbefore;
  {
    const Tensor activated = saved.activated ? saved.activated : activated_again(saved.before_activation);
    dbefore = projection_.backward(activated, kept(dx, later), use, later, {activation_, saved.before_activation});
  }
  const Tensor normed = saved.normed ? saved.normed : again(norm_, saved.norm, use);
  norm_.backward(fc_.backward(normed, dbefore, use, later), saved.norm, dx, use);
}

TransformerBlock::TransformerBlock(Parameters& parameters, const std::string& prefix, const TransformerShape& shape,
                                   const TensorParallel& tensor_parallel, const RecomputeOptions& recompute,
                                   std::shared_ptr<const AttentionCore> core)
    : tensor_parallel_(tensor_parallel),
      recompute_(recompute),
      attention_(parameters, prefix + "ln_1", prefix + "attn", shape, tensor_parallel, std::move(core)),
      mlp_(parameters, prefix + "ln_2", prefix + "mlp", shape, tensor_parallel) {
  recompute.check(tensor_parallel);
}

Tensor TransformerBlock::forward(const Tensor& x, const Tokens& tokens, Saved& saved, ParameterUse& use) const {
  saved.tokens = tokens;
  Tensor y = mlp_.forward(attention_.forward(x, tokens, saved.attention, use), tokens.count(), saved.mlp, use);
  if (recompute_.level == Recompute::selective) saved.attention.normed = saved.mlp.normed = saved.mlp.activated = {};
  if (recompute_.level == Recompute::full) {
    saved = {.input = DividedTensor(x, tensor_parallel_, recompute_.partition), .tokens = tokens};
  }
  return y;
}

void TransformerBlock::backward(const Tensor& dx, Saved& saved, ParameterUse& use, WeightGradients* later) const {
  if (recompute_.level == Recompute::full) {
    const Tensor x = saved.input.whole();
    mlp_.save(attention_.forward(x, saved.tokens, saved.attention, use), saved.tokens.count(), saved.mlp, use);
    saved.input = {};
  }
  mlp_.backward(dx, saved.mlp, use, later);
  saved.mlp = {};
  attention_.backward(dx, saved.tokens, saved.attention, use, later);
  saved.attention = {};
}

}  // namespace stretto
