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
Tensor again(const LayerNorm& norm, const LayerNorm::Saved& saved, ParameterUse& use) {
  LayerNorm::Saved same;
  return norm.forward(saved.x, same, use);
}

Tensor gelu_again(const Tensor& before_gelu) {
  Tensor after_gelu(before_gelu.shape(), before_gelu.dtype());
  kernels::gelu_forward(before_gelu, after_gelu);
  return after_gelu;
}

// dx as it is now: weight gradients that are computed later need it, and the layers before this one add to dx.
Tensor kept(const Tensor& dx, const WeightGradients* later) {
  if (later == nullptr) return dx;
  Tensor copy(dx.shape(), dx.dtype());
  as_kernel("copy", [&] { copy.copy_from(dx); });
  return copy;
}

}  // namespace

void TransformerShape::check_heads(int tensor_ranks, int ulysses_ranks) const {
  require(heads >= 1 && hidden % heads == 0,
          "A hidden size of {} does not divide into {} attention heads; choose a multiple of the heads.", hidden, heads);
  const std::int64_t ranks = std::int64_t{tensor_ranks} * ulysses_ranks;
  require(heads % ranks == 0,
          "{} attention heads do not divide over {} tensor-parallel x {} ulysses ranks; choose a multiple of {}.", heads,
          tensor_ranks, ulysses_ranks, ranks);
}

LayerNorm::LayerNorm(Parameters& parameters, const std::string& name, std::int64_t hidden, double epsilon,
                     const TensorParallel& tensor_parallel)
    : tensor_parallel_(tensor_parallel), epsilon_(epsilon) {
  const auto add = [&](const char* suffix, double value) {
    return &parameters.add(
        Parameter::whole(name + suffix, {hidden}, tensor_parallel.row_axes(), {.initial = {value, 0}, .decays = false}));
  };
  gamma_ = add(".weight", 1);
  beta_ = add(".bias", 0);
  used_ = &parameters.used_together({gamma_, beta_});
}

Tensor LayerNorm::forward(const Tensor& x, Saved& saved, ParameterUse& use) const {
  const InUse in_use(use, *used_, Pass::forward);
  const DType accumulator = kernels::accumulator(x.dtype());
  saved = {x, Tensor({x.rows()}, accumulator), Tensor({x.rows()}, accumulator)};
  Tensor y =
      tensor_parallel_.has_own_rows() ? tensor_parallel_.tensor_to_sum(x.shape(), x.dtype()) : Tensor(x.shape(), x.dtype());
  kernels::layer_norm_forward(x, gamma_->value, beta_->value, epsilon_, y, saved.mean, saved.rstd);
  return y;
}

void LayerNorm::backward(const Tensor& dy, const Saved& saved, const Tensor& dx, ParameterUse& use) const {
  const InUse in_use(use, *used_, Pass::backward);
  kernels::layer_norm_backward(saved.x, gamma_->value, saved.mean, saved.rstd, dy, dx, gamma_->gradient, beta_->gradient);
}

AttentionLayer::AttentionLayer(Parameters& parameters, const std::string& norm_name, const std::string& name,
                               const TransformerShape& shape, const TensorParallel& tensor_parallel,
                               std::shared_ptr<const AttentionCore> core)
    : local_heads_(shape.heads / tensor_parallel.size()),
      head_size_(shape.hidden / shape.heads),
      core_(std::move(core)),
      norm_(parameters, norm_name, shape.hidden, shape.norm_epsilon, tensor_parallel),
      qkv_(parameters, name + ".c_attn", shape.hidden, 3 * shape.hidden, 3, {0, deviation}, tensor_parallel),
      projection_(parameters, name + ".c_proj", shape.hidden, shape.hidden, into_residual(shape), tensor_parallel) {
  shape.check_heads(tensor_parallel.size());
}

Tensor AttentionLayer::forward(const Tensor& x, std::int64_t batch, std::int64_t sequence, Saved& saved,
                               ParameterUse& use) const {
  const Tensor qkv = qkv_.forward(norm_.forward(x, saved.norm, use), batch * sequence, use, &saved.normed);
  saved.attended = core_->forward({batch, sequence, local_heads_, head_size_}, qkv, saved.core);
  return projection_.forward(saved.attended, x, use);
}

void AttentionLayer::backward(const Tensor& dx, const Saved& saved, ParameterUse& use, WeightGradients* later) const {
  const Tensor dqkv = core_->backward(projection_.backward(saved.attended, kept(dx, later), use, later), saved.core);
  const Tensor normed = saved.normed ? saved.normed : again(norm_, saved.norm, use);
  norm_.backward(qkv_.backward(normed, dqkv, use, later), saved.norm, dx, use);
}

MlpLayer::MlpLayer(Parameters& parameters, const std::string& norm_name, const std::string& name,
                   const TransformerShape& shape, const TensorParallel& tensor_parallel)
    : norm_(parameters, norm_name, shape.hidden, shape.norm_epsilon, tensor_parallel),
      fc_(parameters, name + ".c_fc", shape.hidden, shape.mlp_factor * shape.hidden, 1, {0, deviation}, tensor_parallel),
      projection_(parameters, name + ".c_proj", shape.mlp_factor * shape.hidden, shape.hidden, into_residual(shape),
                  tensor_parallel) {}

void MlpLayer::save(const Tensor& x, std::int64_t tokens, Saved& saved, ParameterUse& use) const {
  saved.after_gelu = fc_.forward_gelu(norm_.forward(x, saved.norm, use), tokens, saved.before_gelu, use, &saved.normed);
}

Tensor MlpLayer::forward(const Tensor& x, std::int64_t tokens, Saved& saved, ParameterUse& use) const {
  save(x, tokens, saved, use);
  return projection_.forward(saved.after_gelu, x, use);
}

void MlpLayer::backward(const Tensor& dx, const Saved& saved, ParameterUse& use, WeightGradients* later) const {
  Tensor dgelu;
  {
    const Tensor after_gelu = saved.after_gelu ? saved.after_gelu : gelu_again(saved.before_gelu);
    dgelu = projection_.backward_gelu(after_gelu, kept(dx, later), saved.before_gelu, use, later);
  }
  const Tensor normed = saved.normed ? saved.normed : again(norm_, saved.norm, use);
  norm_.backward(fc_.backward(normed, dgelu, use, later), saved.norm, dx, use);
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

Tensor TransformerBlock::forward(const Tensor& x, std::int64_t batch, std::int64_t sequence, Saved& saved,
                                 ParameterUse& use) const {
  Tensor y = mlp_.forward(attention_.forward(x, batch, sequence, saved.attention, use), batch * sequence, saved.mlp, use);
  if (recompute_.level == Recompute::selective) saved.attention.normed = saved.mlp.normed = saved.mlp.after_gelu = {};
  if (recompute_.level == Recompute::full) {
    saved = {.input = DividedTensor(x, tensor_parallel_, recompute_.partition), .batch = batch, .sequence = sequence};
  }
  return y;
}

void TransformerBlock::backward(const Tensor& dx, Saved& saved, ParameterUse& use, WeightGradients* later) const {
  if (recompute_.level == Recompute::full) {
    const Tensor x = saved.input.whole();
    mlp_.save(attention_.forward(x, saved.batch, saved.sequence, saved.attention, use), saved.batch * saved.sequence,
              saved.mlp, use);
    saved.input = {};
  }
  mlp_.backward(dx, saved.mlp, use, later);
  saved.mlp = {};
  attention_.backward(dx, saved.attention, use, later);
  saved.attention = {};
}

}  // namespace stretto
