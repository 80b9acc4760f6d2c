#include "stretto/layers/transformer.hpp"

#include <cmath>

#include "core/fail.hpp"
#include "stretto/device.hpp"
#include "stretto/kernels.hpp"

namespace stretto {
namespace {

constexpr double deviation = 0.02;  // GPT-2's

Initial into_residual(const TransformerShape& shape) {
  return {0, deviation / std::sqrt(2.0 * static_cast<double>(shape.layers))};
}

// Reports in the reverse order of creation: gradients lie in memory in that order.
void report_ready(const GradientReady& ready, const std::vector<Parameter*>& finished) {
  if (!ready) return;
  for (auto each = finished.rbegin(); each != finished.rend(); ++each) ready(**each);
}

void request(const ParametersNeeded& needed, const std::vector<Parameter*>& parameters) {
  if (!needed) return;
  for (const Parameter* parameter : parameters) needed(*parameter);
}

}  // namespace

LayerNorm::LayerNorm(Parameters& parameters, const std::string& name, std::int64_t hidden, double epsilon)
    : epsilon_(epsilon) {
  const auto add = [&](const char* suffix, double value) {
    return &parameters.add({.name = name + suffix,
                            .global_shape = {hidden},
                            .first = {0},
                            .extents = {hidden},
                            .replicated_over = {Axis::data, Axis::tensor},
                            .sum_gradient_over = {Axis::data},
                            .initial = {value, 0},
                            .decays = false});
  };
  gamma_ = add(".weight", 1);
  beta_ = add(".bias", 0);
}

Tensor LayerNorm::forward(const Tensor& x, Saved& saved) const {
  const DType accumulator = kernels::accumulator(x.dtype());
  saved = {x, Tensor({x.rows()}, accumulator), Tensor({x.rows()}, accumulator)};
  Tensor y(x.shape(), x.dtype());
  kernels::layer_norm_forward(x, gamma_->value, beta_->value, epsilon_, y, saved.mean, saved.rstd);
  return y;
}

void LayerNorm::backward(const Tensor& dy, const Saved& saved, const Tensor& dx) const {
  kernels::layer_norm_backward(saved.x, gamma_->value, saved.mean, saved.rstd, dy, dx, gamma_->gradient, beta_->gradient);
}

AttentionLayer::AttentionLayer(Parameters& parameters, const std::string& norm_name, const std::string& name,
                               const TransformerShape& shape, const TensorParallel& tensor_parallel)
    : tensor_parallel_(tensor_parallel),
      local_heads_(shape.heads / tensor_parallel.group.size()),
      head_size_(shape.hidden / shape.heads),
      norm_(parameters, norm_name, shape.hidden, shape.norm_epsilon),
      qkv_(parameters, name + ".c_attn", shape.hidden, 3 * shape.hidden, 3, {0, deviation}, tensor_parallel),
      projection_(parameters, name + ".c_proj", shape.hidden, shape.hidden, into_residual(shape), tensor_parallel) {
  require(shape.hidden % shape.heads == 0, "A hidden size of {} does not divide into {} attention heads.", shape.hidden,
          shape.heads);
  require(shape.heads % tensor_parallel.group.size() == 0, "{} attention heads do not divide over {} tensor-parallel ranks.",
          shape.heads, tensor_parallel.group.size());
}

Tensor AttentionLayer::forward(const Tensor& x, std::int64_t batch, std::int64_t sequence, Saved& saved,
                               const ParametersNeeded& needed) const {
  saved.batch = batch;
  saved.sequence = sequence;
  request(needed, norm_.parameters());
  saved.normed = norm_.forward(x, saved.norm);
  request(needed, qkv_.parameters());
  saved.qkv = qkv_.forward(saved.normed);
  saved.attended = Tensor({x.rows(), local_heads_ * head_size_}, x.dtype());
  saved.log_sum_exp = Tensor({batch, local_heads_, sequence}, kernels::accumulator(x.dtype()));
  kernels::attention_forward({batch, sequence, local_heads_, head_size_}, saved.qkv, saved.attended, saved.log_sum_exp);
  request(needed, projection_.parameters());
  return projection_.forward(saved.attended, x);
}

void AttentionLayer::backward(const Tensor& dx, const Saved& saved, const GradientReady& ready) const {
  const Tensor dattended = projection_.backward_input(dx);
  projection_.backward_weight(saved.attended, dx);
  report_ready(ready, projection_.parameters());
  const Tensor dqkv(saved.qkv.shape(), saved.qkv.dtype());
  kernels::attention_backward({saved.batch, saved.sequence, local_heads_, head_size_}, saved.qkv, saved.attended,
                              saved.log_sum_exp, dattended, dqkv);
  const Tensor dnormed = qkv_.backward_input(dqkv);
  const Work sum = tensor_parallel_.start_sum(dnormed, "column-parallel backward");
  qkv_.backward_weight(saved.normed, dqkv);
  report_ready(ready, qkv_.parameters());
  computation().wait(sum);
  norm_.backward(dnormed, saved.norm, dx);
  report_ready(ready, norm_.parameters());
}

MlpLayer::MlpLayer(Parameters& parameters, const std::string& norm_name, const std::string& name,
                   const TransformerShape& shape, const TensorParallel& tensor_parallel)
    : tensor_parallel_(tensor_parallel),
      norm_(parameters, norm_name, shape.hidden, shape.norm_epsilon),
      fc_(parameters, name + ".c_fc", shape.hidden, shape.mlp_factor * shape.hidden, 1, {0, deviation}, tensor_parallel),
      projection_(parameters, name + ".c_proj", shape.mlp_factor * shape.hidden, shape.hidden, into_residual(shape),
                  tensor_parallel) {}

Tensor MlpLayer::forward(const Tensor& x, Saved& saved, const ParametersNeeded& needed) const {
  request(needed, norm_.parameters());
  saved.normed = norm_.forward(x, saved.norm);
  request(needed, fc_.parameters());
  saved.after_gelu = fc_.forward_gelu(saved.normed, saved.before_gelu);
  request(needed, projection_.parameters());
  return projection_.forward(saved.after_gelu, x);
}

void MlpLayer::backward(const Tensor& dx, const Saved& saved, const GradientReady& ready) const {
  const Tensor dgelu = projection_.backward_input_gelu(dx, saved.before_gelu);
  projection_.backward_weight(saved.after_gelu, dx);
  report_ready(ready, projection_.parameters());
  const Tensor dnormed = fc_.backward_input(dgelu);
  const Work sum = tensor_parallel_.start_sum(dnormed, "column-parallel backward");
  fc_.backward_weight(saved.normed, dgelu);
  report_ready(ready, fc_.parameters());
  computation().wait(sum);
  norm_.backward(dnormed, saved.norm, dx);
  report_ready(ready, norm_.parameters());
}

TransformerBlock::TransformerBlock(Parameters& parameters, const std::string& prefix, const TransformerShape& shape,
                                   const TensorParallel& tensor_parallel)
    : attention_(parameters, prefix + "ln_1", prefix + "attn", shape, tensor_parallel),
      mlp_(parameters, prefix + "ln_2", prefix + "mlp", shape, tensor_parallel) {}

Tensor TransformerBlock::forward(const Tensor& x, std::int64_t batch, std::int64_t sequence, Saved& saved,
                                 const ParametersNeeded& needed) const {
  return mlp_.forward(attention_.forward(x, batch, sequence, saved.attention, needed), saved.mlp, needed);
}

void TransformerBlock::backward(const Tensor& dx, const Saved& saved, const GradientReady& ready) const {
  mlp_.backward(dx, saved.mlp, ready);
  attention_.backward(dx, saved.attention, ready);
}

}  // namespace stretto
