#pragma once
#include "stretto/layers/attention.hpp"
#include "stretto/layers/layer_cost.hpp"
#include "stretto/layers/parameter_use.hpp"

namespace stretto {

// The RMS norms of each head of queries and of keys, with one weight of head_size elements each (Qwen 3).
class STRETTO_API QueryKeyNorm {
 public:
  QueryKeyNorm(Parameters& parameters, const std::string& name, std::int64_t head_size, double epsilon);
  struct Saved {
    kernels::TokenHeads q, k;  // before the norm
    Tensor q_rstd, k_rstd;
  };
  // Puts the results, in memory of their own, in place of q and k.
  void forward(const AttentionCore::Shape& shape, QueriesKeysValues& of, Saved& saved, ParameterUse& use) const;
  // The gradients of q and k become those before the norm. Those of the weights are never left for later.
  void backward(const AttentionCore::Shape& shape, const QueriesKeysValues& gradients, const Saved& saved,
                ParameterUse& use) const;
  // heads: of queries and keys together, on this rank.
  LayerCost cost(const CostedTokens& tokens, std::int64_t heads) const;

 private:
  double epsilon_;
  Parameter* q_;
  Parameter* k_;
  const UsedParameters* used_;
};

}  // namespace stretto
