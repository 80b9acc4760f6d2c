#pragma once
#include <functional>

#include "stretto/layers/layer_cost.hpp"
#include "stretto/layers/tensor_parallel.hpp"
#include "stretto/layers/weight_gradients.hpp"

// What linear layers and the table of the logits have in common: products with a weight of which a rank has some rows.
namespace stretto {

// With own rows only: y = x W^T, x gathered from all ranks meanwhile. See ColumnParallelLinear::forward.
void multiply_gathered(const Tensor& x, const Tensor& weight, const Tensor& y, const TensorParallel& tensor_parallel,
                       Tensor* for_backward);

// The cost of these and of ColumnParallelBackward, without a bias.
LayerCost column_parallel_cost(const TensorParallel& tensor_parallel, const Parameter& weight, const CostedTokens& tokens);

// Returns own rows of dx = dy W, summed over the group, while add_gradients(x) adds the gradients of the parameters, or
// leaves that for later. x: what ColumnParallelLinear::forward has left for backward.
struct ColumnParallelBackward {
  const TensorParallel& tensor_parallel;
  Parameter* weight;
  const UsedParameters& used;
  std::function<void(const Tensor& x)> add_gradients;  // from the rows of all ranks

  Tensor operator()(const Tensor& x, const Tensor& dy, ParameterUse& use, WeightGradients* later) const;

 private:
  Tensor sum_all(const Tensor& x, const Tensor& dy, ParameterUse& use, WeightGradients* later) const;
  Tensor sum_own(const Tensor& x, const Tensor& dy, ParameterUse& use, WeightGradients* later) const;
};

}  // namespace stretto
