#pragma once
#include <functional>

#include "layers/tensor_parallel/linear_adapters.hpp"
#include "layers/tensor_parallel/own_rows.hpp"
#include "stretto/layers/layer_cost.hpp"
#include "stretto/layers/tensor_parallel.hpp"
#include "stretto/layers/weight_gradients.hpp"

// What linear layers and the table of the logits have in common: products with a weight of which a rank has some rows.
namespace stretto {

// With own rows only: y = x times the factor, x gathered from all ranks meanwhile. See ColumnParallelLinear::forward.
void multiply_gathered(const Tensor& x, const GemmFactor& factor, const Tensor& y, const TensorParallel& tensor_parallel,
                       Tensor* for_backward);

// The cost of these and of ColumnParallelBackward, without a bias. adapters: may be null.
LayerCost column_parallel_cost(const TensorParallel& tensor_parallel, const OwnRows& weight, const CostedTokens& tokens,
                               const LinearAdapters* adapters = nullptr);

// Returns own rows of dx = dy (W + B A), summed over the group, while add_gradients(x) adds the gradients of the weight and
// the bias, and the adapters theirs, or leaves that for later. x: what ColumnParallelLinear::forward has left for backward.
struct ColumnParallelBackward {
  const TensorParallel& tensor_parallel;
  const OwnRows& weight;
  const UsedParameters& used;
  std::function<void(const Tensor& x)> add_gradients;   // from the rows of all ranks
  std::shared_ptr<const LinearAdapters> adapters = {};  // may be null
  Tensor draws = {};                                    // of all rows

  Tensor operator()(const Tensor& x, const Tensor& dy, ParameterUse& use, WeightGradients* later) const;

 private:
  LowRank factors() const { return adapters != nullptr ? adapters->factors(draws) : LowRank{}; }
  // add_gradients, and the adapters' with these factors.
  std::function<void(const Tensor& x)> add_all(const Tensor& dy, const LowRank& factors) const;
  Tensor sum_all(const Tensor& x, const Tensor& dy, ParameterUse& use, WeightGradients* later) const;
  Tensor sum_own(const Tensor& x, const Tensor& dy, ParameterUse& use, WeightGradients* later) const;
};

}  // namespace stretto
