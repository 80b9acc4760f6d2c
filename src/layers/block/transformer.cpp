#include "stretto/layers/transformer.hpp"

#include <algorithm>
#include <cmath>

#include "core/fail.hpp"
#include "device/stream/kernel_scope.hpp"
#include "overlap/offload/tensor_file.hpp"
#include "stretto/device.hpp"
#include "stretto/kernels.hpp"

namespace stretto {
namespace {

constexpr double deviation = 0.02;  // GPT-2's

Initial into_residual(const DecoderShape& shape) {
  return {0, deviation / std::sqrt(2.0 * static_cast<double>(shape.layers))};
}

// The result of a norm, from its kept input.
Tensor again(const Norm& norm, const Norm::Saved& saved, ParameterUse& use) {
  Norm::Saved same;
  return norm.forward(saved.x, same, use);
}

const DecoderShape& checked(const DecoderShape& shape, const TensorParallel& tensor_parallel) {
  shape.check_block(tensor_parallel.size());
  return shape;
}

// dx as it is now: weight gradients that are computed later need it, and the layers before this one add to dx.
Tensor kept(const Tensor& dx, const WeightGradients* later) {
  if (later == nullptr) return dx;
  Tensor copy(dx.shape(), dx.dtype());
  as_kernel("copy", [&] { copy.copy_from(dx); });
  return copy;
}

// The copy that kept() makes, which is read and written like the result of a norm.
void add_copy(const CostedTokens& tokens, const LayerCost& norm, LayerCost& cost) {
  if (tokens.splits) cost.input = cost.input + PassCost{.bytes = norm.forward.bytes, .kernels = 1};
}

// The norm's result is computed again, beside `gradient` bytes of gradients, instead of kept as the linear layer's input
// (which is never a gathered one at this level).
void drop_normed(const LayerCost& norm, const LayerCost& linear, std::int64_t gradient, LayerCost& cost) {
  const std::int64_t normed = linear.kept;
  cost.again = norm.forward;
  cost.kept -= linear.kept;
  cost.backward = std::max(cost.backward, gradient + normed + std::max(linear.backward, norm.kept));
}

// As packed_heads() has them.
std::vector<NamedParts> parts_of_qkv(const DecoderShape& shape) {
  const int each = static_cast<int>(shape.heads / shape.kv_heads);
  return {{".q", 0, each}, {".k", each, 1}, {".v", each + 1, 1}};
}

std::vector<NamedParts> parts_of_gate(const DecoderShape& shape) {
  if (kernels::products_of(shape.activation) == 1) return {};
  return {{".gate", 0, 1}, {".up", 1, 1}};
}

}  // namespace

AttentionLayer::AttentionLayer(Parameters& parameters, const std::string& norm_name, const std::string& name,
                               const DecoderShape& shape, const TensorParallel& tensor_parallel,
                               std::shared_ptr<const AttentionCore> core, std::shared_ptr<const RotaryPositions> positions,
                               const AdapterSet& adapters)
    : heads_{checked(shape, tensor_parallel).heads, shape.kv_heads, shape.head_size},
      local_heads_(shape.heads / tensor_parallel.size()),
      local_kv_heads_(std::max<std::int64_t>(1, shape.kv_heads / tensor_parallel.size())),
      core_(std::move(core)),
      positions_(std::move(positions)),
      norm_(parameters, norm_name, shape.hidden, shape.norm, tensor_parallel),
      qkv_(parameters, name + ".c_attn", shape.hidden, (shape.heads + 2 * shape.kv_heads) * shape.head_size,
           static_cast<int>(shape.heads / shape.kv_heads) + 2, {0, deviation}, tensor_parallel, shape.biases.qkv, adapters,
           parts_of_qkv(shape), {.count = 2, .heads = shape.kv_heads}),
      projection_(parameters, name + ".c_proj", shape.heads * shape.head_size, shape.hidden, into_residual(shape),
                  tensor_parallel, shape.biases.projection, adapters) {
  if (shape.qk_norm) qk_norm_.emplace(parameters, name, shape.head_size, shape.norm.epsilon);
}

AttentionCore::Shape AttentionLayer::shape_of(const Tokens& tokens) const {
  return {tokens.batch, tokens.length, local_heads_, local_kv_heads_, heads_.head_size, tokens.starts};
}

void AttentionLayer::turn(const QueriesKeysValues& of, const Tokens& tokens, bool back) const {
  if (positions_ == nullptr) return;
  positions_->turn(of.q, local_heads_, tokens.positions, back);
  positions_->turn(of.k, local_kv_heads_, tokens.positions, back);
}

Tensor AttentionLayer::forward(const Tensor& x, const Tokens& tokens, Saved& saved, ParameterUse& use) const {
  const Tensor qkv = qkv_.forward(norm_.forward(x, saved.norm, use), tokens.count(), use, &saved.normed, {}, tokens.draws);
  const AttentionCore::Shape shape = shape_of(tokens);
  QueriesKeysValues of = packed_heads(shape, qkv);
  if (qk_norm_) qk_norm_->forward(shape, of, saved.qk_norm, use);
  turn(of, tokens, false);
  saved.attended = core_->forward(shape, of, saved.core);
  return projection_.forward(saved.attended, x, use, tokens.draws);
}

void AttentionLayer::backward(const Tensor& dx, const Tokens& tokens, const Saved& saved, ParameterUse& use,
                              WeightGradients* later) const {
  const AttentionCore::Shape shape = shape_of(tokens);
  Tensor dqkv;
  {
    const Tensor dattended = projection_.backward(saved.attended, kept(dx, later), use, later, {}, tokens.draws);
    dqkv = Tensor({tokens.count(), (shape.heads + 2 * shape.kv_heads) * shape.head_size}, dx.dtype());
    const QueriesKeysValues gradients = packed_heads(shape, dqkv);
    core_->backward(dattended, saved.core, gradients);
    turn(gradients, tokens, true);
    if (qk_norm_) qk_norm_->backward(shape, gradients, saved.qk_norm, use);
  }
  const Tensor normed = saved.normed ? saved.normed : again(norm_, saved.norm, use);
  norm_.backward(qkv_.backward(normed, dqkv, use, later, tokens.draws), saved.norm, dx, use);
}

// At the peak of backward there are the gradients of queries, keys and values, and beside them that of the result, or what
// it takes to get theirs before the norm.
LayerCost AttentionLayer::cost(const CostedTokens& tokens) const {
  const LayerCost norm = norm_.cost(tokens), qkv = qkv_.cost(tokens), projection = projection_.cost(tokens);
  LayerCost cost = norm.before(qkv).before(projection);
  const std::int64_t queries = tokens.bytes(tokens.count * local_heads_ * heads_.head_size);
  const std::int64_t packed = tokens.bytes(tokens.count * (local_heads_ + 2 * local_kv_heads_) * heads_.head_size);
  cost.attention = {heads_};
  cost.kept += packed + tokens.count * tokens.statistic() * local_heads_ + (tokens.exchanges_heads ? queries : 0);
  cost.backward = packed + std::max(queries + projection.backward, qkv.backward);
  add_copy(tokens, norm, cost);
  const std::int64_t turned = local_heads_ + local_kv_heads_;  // queries and keys
  const auto turning = static_cast<double>(2 * tokens.bytes(tokens.count * turned * heads_.head_size));
  for (PassCost* pass : {&cost.forward, &cost.input}) {
    if (positions_ != nullptr) *pass = *pass + PassCost{.bytes = turning, .kernels = 2};
  }
  if (qk_norm_) {
    const LayerCost its = qk_norm_->cost(tokens, turned);
    cost.forward = cost.forward + its.forward;
    cost.input = cost.input + its.input;
    cost.parameters += its.parameters;
    cost.kept += its.kept;
  }
  if (tokens.level == Recompute::full) cost.again = cost.forward;
  if (tokens.level == Recompute::selective) drop_normed(norm, qkv, packed, cost);
  return cost;
}

MlpLayer::MlpLayer(Parameters& parameters, const std::string& norm_name, const std::string& name, const DecoderShape& shape,
                   const TensorParallel& tensor_parallel, const AdapterSet& adapters)
    : activation_(shape.activation),
      local_width_(share_of(shape.mlp_width, tensor_parallel.size(), tensor_parallel.rank()).count),
      norm_(parameters, norm_name, shape.hidden, shape.norm, tensor_parallel),
      fc_(parameters, name + ".c_fc", shape.hidden, kernels::products_of(shape.activation) * shape.mlp_width,
          kernels::products_of(shape.activation), {0, deviation}, tensor_parallel, shape.biases.mlp, adapters,
          parts_of_gate(shape)),
      projection_(parameters, name + ".c_proj", shape.mlp_width, shape.hidden, into_residual(shape), tensor_parallel,
                  shape.biases.mlp, adapters) {}

void MlpLayer::save(const Tensor& x, std::int64_t tokens, Saved& saved, ParameterUse& use, const Tensor& draws) const {
  saved.draws = draws;
  const Tensor normed = norm_.forward(x, saved.norm, use);
  saved.activated = Tensor({tokens, local_width_}, x.dtype());
  saved.before_activation = fc_.forward(normed, tokens, use, &saved.normed, {activation_, saved.activated}, draws);
}

Tensor MlpLayer::forward(const Tensor& x, std::int64_t tokens, Saved& saved, ParameterUse& use, const Tensor& draws) const {
  save(x, tokens, saved, use, draws);
  return projection_.forward(saved.activated, x, use, draws);
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
    dbefore =
        projection_.backward(activated, kept(dx, later), use, later, {activation_, saved.before_activation}, saved.draws);
  }
  const Tensor normed = saved.normed ? saved.normed : again(norm_, saved.norm, use);
  norm_.backward(fc_.backward(normed, dbefore, use, later, saved.draws), saved.norm, dx, use);
}

LayerCost MlpLayer::cost(const CostedTokens& tokens) const {
  const LayerCost norm = norm_.cost(tokens), fc = fc_.cost(tokens, true), projection = projection_.cost(tokens);
  LayerCost cost = norm.before(fc).before(projection);
  const std::int64_t activated = tokens.bytes(tokens.count * local_width_);
  const std::int64_t before = kernels::products_of(activation_) * activated;
  const PassCost activation{.bytes = static_cast<double>(before + activated), .kernels = 1};
  cost.forward = cost.forward + activation;
  cost.input = cost.input + PassCost{.bytes = static_cast<double>(2 * before + activated), .kernels = 1};
  cost.kept += before;
  // The gradients of a gate's two products are made from that of their result.
  const std::int64_t result = before > activated ? activated : 0;
  cost.backward = before + std::max(result + projection.backward, fc.backward);
  add_copy(tokens, norm, cost);
  if (tokens.level == Recompute::full) cost.again = norm.forward + fc.forward + activation;
  if (tokens.level != Recompute::selective) return cost;
  drop_normed(norm, fc, before, cost);
  cost.again = cost.again + activation;
  cost.kept -= projection.kept;
  cost.backward = std::max(cost.backward, before + activated + result + projection.backward);
  return cost;
}

TransformerBlock::TransformerBlock(Parameters& parameters, const std::string& prefix, const DecoderShape& shape,
                                   const TensorParallel& tensor_parallel, const RecomputeOptions& recompute,
                                   std::shared_ptr<const AttentionCore> core,
                                   std::shared_ptr<const RotaryPositions> positions, const AdapterSet& adapters,
                                   std::shared_ptr<TensorFile> inputs)
    : tensor_parallel_(tensor_parallel),
      recompute_(recompute),
      hidden_(shape.hidden),
      attention_(parameters, prefix + "ln_1", prefix + "attn", shape, tensor_parallel, std::move(core),
                 positions != nullptr ? std::move(positions) : RotaryPositions::of(shape), adapters),
      mlp_(parameters, prefix + "ln_2", prefix + "mlp", shape, tensor_parallel, adapters),
      inputs_(std::move(inputs)) {
  recompute.check(tensor_parallel);
}

Tensor TransformerBlock::forward(const Tensor& x, const Tokens& tokens, Saved& saved, ParameterUse& use) const {
  saved.tokens = tokens;
  const Tensor attended = attention_.forward(x, tokens, saved.attention, use);
  Tensor y = mlp_.forward(attended, tokens.count(), saved.mlp, use, tokens.draws);
  if (recompute_.level == Recompute::selective) saved.attention.normed = saved.mlp.normed = saved.mlp.activated = {};
  if (recompute_.level == Recompute::full && inputs_ != nullptr) {
    saved = {.input_in_file = inputs_->keep(x), .tokens = tokens};
  } else if (recompute_.level == Recompute::full) {
    saved = {.input = DividedTensor(x, tensor_parallel_, recompute_.partition), .tokens = tokens};
  }
  return y;
}

void TransformerBlock::prefetch(Saved& saved) const {
  saved.input.gather();
  if (saved.input_in_file) saved.input_in_file->fetch();
}

void TransformerBlock::backward(const Tensor& dx, Saved& saved, ParameterUse& use, WeightGradients* later) const {
  if (recompute_.level == Recompute::full) {
    const Tensor x = saved.input_in_file ? saved.input_in_file->take() : saved.input.whole();
    const Tensor attended = attention_.forward(x, saved.tokens, saved.attention, use);
    mlp_.save(attended, saved.tokens.count(), saved.mlp, use, saved.tokens.draws);
    saved.input = {};
    saved.input_in_file = {};
  }
  mlp_.backward(dx, saved.mlp, use, later);
  saved.mlp = {};
  attention_.backward(dx, saved.tokens, saved.attention, use, later);
  saved.attention = {};
}

// With Recompute::full the kept input is one of the tensors that are there again in backward; where it is divided or lies in
// a file, its memory is freed, and the input of the next block takes that place meanwhile.
LayerCost TransformerBlock::cost(const CostedTokens& tokens) const {
  LayerCost cost = attention_.cost(tokens).before(mlp_.cost(tokens));
  if (tokens.level != Recompute::full) return cost;
  const int ranks = tensor_parallel_.size();
  const std::int64_t all = tokens.bytes(tokens.count * hidden_);
  const std::int64_t rows =
      recompute_.partition ? share_of(tokens.count, ranks, 0).count : tensor_parallel_.own_rows(tokens.count).count;
  const bool in_file = !recompute_.directory.empty();
  const std::int64_t input = in_file ? 0 : tokens.bytes(rows * hidden_);
  const std::int64_t again = recompute_.partition ? all : tokens.bytes(rows * hidden_);
  cost.backward += cost.kept - input + (recompute_.partition || in_file ? again - input : 0);
  cost.kept = input;
  if (!recompute_.partition) return cost;
  cost.again.exchanges.push_back(
      {Collective::all_gather, tokens.count * hidden_, tokens.dtype, Exchange::Hidden::beside, cost.input.products.back()});
  return cost;
}

}  // namespace stretto
