#include "stretto/layers/norm.hpp"

#include "layers/block/gradient_or_scratch.hpp"
#include "stretto/kernels.hpp"

namespace stretto {

Norm::Norm(Parameters& parameters, const std::string& name, std::int64_t hidden, const Options& options,
           const TensorParallel& tensor_parallel)
    : tensor_parallel_(tensor_parallel), options_(options) {
  const auto add = [&](const char* suffix, double value) {
    return &parameters.add(
        Parameter::whole(name + suffix, {hidden}, tensor_parallel.row_axes(), {.initial = {value, 0}, .decays = false}));
  };
  gamma_ = add(".weight", 1);
  beta_ = options.kind == Kind::layer ? add(".bias", 0) : nullptr;
  used_ = &parameters.used_together(beta_ != nullptr ? std::vector{gamma_, beta_} : std::vector{gamma_});
}

Tensor Norm::forward(const Tensor& x, Saved& saved, ParameterUse& use) const {
  const InUse in_use(use, *used_, Pass::forward);
  const DType accumulator = kernels::accumulator(x.dtype());
  saved = {x, {}, Tensor({x.rows()}, accumulator)};
  Tensor y =
      tensor_parallel_.has_own_rows() ? tensor_parallel_.tensor_to_sum(x.shape(), x.dtype()) : Tensor(x.shape(), x.dtype());
  switch (options_.kind) {
    case Kind::layer:
      saved.mean = Tensor({x.rows()}, accumulator);
      kernels::layer_norm_forward(x, gamma_->value, beta_->value, options_.epsilon, y, saved.mean, saved.rstd);
      break;
    case Kind::rms: kernels::rms_norm_forward(x, gamma_->value, options_.epsilon, y, saved.rstd);
  }
  return y;
}

void Norm::backward(const Tensor& dy, const Saved& saved, const Tensor& dx, ParameterUse& use) const {
  const InUse in_use(use, *used_, Pass::backward);
  switch (options_.kind) {
    case Kind::layer:
      kernels::layer_norm_backward(saved.x, gamma_->value, saved.mean, saved.rstd, dy, dx,
                                   gradient_or_scratch(*gamma_, beta_), gradient_or_scratch(*beta_, gamma_));
      break;
    case Kind::rms: kernels::rms_norm_backward(saved.x, gamma_->value, saved.rstd, dy, dx, gradient_or_scratch(*gamma_));
  }
}

// Backward reads x and both gradients, and writes that of x.
LayerCost Norm::cost(const CostedTokens& tokens) const {
  const std::int64_t own = tensor_parallel_.own_rows(tokens.count).count;
  const std::int64_t x = tokens.bytes(own * gamma_->elements());
  const std::int64_t statistics = options_.kind == Kind::layer ? 2 : 1;
  LayerCost cost;
  cost.forward = {.bytes = 2.0 * static_cast<double>(x), .kernels = 1};
  cost.input = {.bytes = 4.0 * static_cast<double>(x), .kernels = 1};
  cost.parameters = gamma_->elements() + (beta_ != nullptr ? beta_->elements() : 0);
  cost.kept = x + statistics * own * tokens.statistic();
  return cost;
}

}  // namespace stretto
