#include "stretto/layers/qk_norm.hpp"

#include "layers/attention/grouped_heads.hpp"
#include "layers/block/gradient_or_scratch.hpp"
#include "stretto/kernels.hpp"

namespace stretto {

// Tensor-parallel ranks have other heads, so that each computes a part of these gradients.
QueryKeyNorm::QueryKeyNorm(Parameters& parameters, const std::string& name, std::int64_t head_size, double epsilon)
    : epsilon_(epsilon) {
  const auto add = [&](const char* suffix) {
    return &parameters.add(
        Parameter::whole(name + suffix, {head_size}, token_axes | Axis::tensor, {.initial = {1, 0}, .decays = false}));
  };
  q_ = add(".q_norm.weight");
  k_ = add(".k_norm.weight");
  used_ = &parameters.used_together({q_, k_});
}

void QueryKeyNorm::forward(const AttentionCore::Shape& shape, QueriesKeysValues& of, Saved& saved, ParameterUse& use) const {
  const InUse in_use(use, *used_, Pass::forward);
  const auto norm = [&](kernels::TokenHeads& heads, std::int64_t count, const Parameter& gamma, kernels::TokenHeads& before,
                        Tensor& rstd) {
    const std::int64_t columns = count * shape.head_size, tokens = heads.tensor.rows();
    before = heads;
    heads = like(heads, Tensor({tokens, columns}, heads.tensor.dtype()), columns);
    rstd = Tensor({tokens, count}, kernels::accumulator(heads.tensor.dtype()));
    kernels::head_norm_forward(before, count, gamma.value, epsilon_, heads, rstd);
  };
  norm(of.q, shape.heads, *q_, saved.q, saved.q_rstd);
  norm(of.k, shape.kv_heads, *k_, saved.k, saved.k_rstd);
}

void QueryKeyNorm::backward(const AttentionCore::Shape& shape, const QueriesKeysValues& gradients, const Saved& saved,
                            ParameterUse& use) const {
  const InUse in_use(use, *used_, Pass::backward);
  kernels::head_norm_backward(saved.q, shape.heads, q_->value, saved.q_rstd, gradients.q, gradients.q,
                              gradient_or_scratch(*q_));
  kernels::head_norm_backward(saved.k, shape.kv_heads, k_->value, saved.k_rstd, gradients.k, gradients.k,
                              gradient_or_scratch(*k_));
}

LayerCost QueryKeyNorm::cost(const CostedTokens& tokens, std::int64_t heads) const {
  const std::int64_t bytes = tokens.bytes(tokens.count * heads * q_->elements());
  LayerCost cost;
  cost.forward = {.bytes = 2.0 * static_cast<double>(bytes), .kernels = 2};
  cost.input = {.bytes = 3.0 * static_cast<double>(bytes), .kernels = 2};
  cost.parameters = q_->elements() + k_->elements();
  cost.kept = bytes + tokens.count * heads * tokens.statistic();
  return cost;
}

}  // namespace stretto
