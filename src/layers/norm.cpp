#include "stretto/layers/norm.hpp"

#include "stretto/kernels.hpp"

namespace stretto {
namespace {

// The kernel adds to both gradients of a norm, which have one type; that of a frozen parameter is thrown away.
Tensor gradient_or_scratch(const Parameter& parameter, const Parameter& other) {
  if (parameter.trainable) return parameter.gradient;
  return Tensor::zeros(parameter.extents,
                       other.trainable ? other.gradient.dtype() : kernels::accumulator(parameter.value.dtype()));
}

}  // namespace

Norm::Norm(Parameters& parameters, const std::string& name, std::int64_t hidden, const Options& options,
           const TensorParallel& tensor_parallel)
    : tensor_parallel_(tensor_parallel), options_(options) {
  const auto add = [&](const char* suffix, double value) {
    return &parameters.add(
        Parameter::whole(name + suffix, {hidden}, tensor_parallel.row_axes(), {.initial = {value, 0}, .decays = false}));
  };
  gamma_ = add(".weight", 1);
  beta_ = add(".bias", 0);
  used_ = &parameters.used_together({gamma_, beta_});
}

Tensor Norm::forward(const Tensor& x, Saved& saved, ParameterUse& use) const {
  const InUse in_use(use, *used_, Pass::forward);
  const DType accumulator = kernels::accumulator(x.dtype());
  saved = {x, Tensor({x.rows()}, accumulator), Tensor({x.rows()}, accumulator)};
  Tensor y =
      tensor_parallel_.has_own_rows() ? tensor_parallel_.tensor_to_sum(x.shape(), x.dtype()) : Tensor(x.shape(), x.dtype());
  switch (options_.kind) {
    case Kind::layer:
      kernels::layer_norm_forward(x, gamma_->value, beta_->value, options_.epsilon, y, saved.mean, saved.rstd);
  }
  return y;
}

void Norm::backward(const Tensor& dy, const Saved& saved, const Tensor& dx, ParameterUse& use) const {
  const InUse in_use(use, *used_, Pass::backward);
  switch (options_.kind) {
    case Kind::layer:
      kernels::layer_norm_backward(saved.x, gamma_->value, saved.mean, saved.rstd, dy, dx,
                                   gradient_or_scratch(*gamma_, *beta_), gradient_or_scratch(*beta_, *gamma_));
  }
}

// Backward reads x and both gradients, and writes that of x.
LayerCost Norm::cost(const CostedTokens& tokens) const {
  const std::int64_t own = tensor_parallel_.own_rows(tokens.count).count;
  const std::int64_t x = tokens.bytes(own * gamma_->elements());
  LayerCost cost;
  cost.forward = {.bytes = 2.0 * static_cast<double>(x), .kernels = 1};
  cost.input = {.bytes = 4.0 * static_cast<double>(x), .kernels = 1};
  cost.parameters = gamma_->elements() + beta_->elements();
  cost.kept = x + 2 * own * tokens.statistic();
  return cost;
}

}  // namespace stretto
