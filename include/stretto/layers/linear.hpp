#pragma once
#include <memory>

#include "stretto/kernels.hpp"
#include "stretto/layers/adapter.hpp"
#include "stretto/layers/layer_cost.hpp"
#include "stretto/layers/tensor_parallel.hpp"
#include "stretto/layers/weight_gradients.hpp"

// Linear layers divided over a tensor-parallel group of t ranks (Megatron-LM; Shoeybi et al. 2019). y = x W^T + b, with
// x: [tokens, in] and y: [tokens, out]. A column-parallel layer followed by a row-parallel one needs one all-reduce of
// [tokens, hidden] in forward and one in backward. A transformer block has two such pairs, so a rank sends 8 tokens
// hidden (t-1)/t elements per block and microbatch.
//
// With TensorParallel::divides_rows, "own rows" below are this rank's, else all. An all-gather before a column-parallel
// layer and a reduce-scatter behind a row-parallel one then take the place of the all-reduce, and the same the other way
// round in backward: as many elements, in chunks that travel while others are multiplied (overlap/chunked_gemm.hpp).
//
// The bias is optional: a layer without one has no record of it. Layers know no activation. An Epilogue, which they hand on
// to the kernel of their product, lets it compute one in the same pass.
//
// A backward with `later` computes dx alone and leaves the gradients of weight and bias there (weight_gradients.hpp), which
// keeps x and dy: until they are computed, the caller must not overwrite these.
//
// Adapters (layers/adapter.hpp) belong to the layer: y = x (W + scale B A)^T + b, without a collective of their own. Of a
// column-parallel layer, B is divided as the weight's rows are, and A is whole, as is B of a row-parallel one, whose A is
// divided as the weight's columns are; each rank computes a part of the gradient of the whole factor. x A^T is computed
// again in backward. With TensorParallel::tiles, the products are those of the tiles, and all else is used behind them.
// draws, of forward and backward: Tokens::draws of all rows, by which adapters drop elements of their input
// (AdapterOptions::dropout); empty: nothing is dropped.
namespace stretto {

class LinearAdapters;
class OwnRows;
class WeightTiles;
struct LowRank;

// Parts of a fused layer that are a matrix of their own (Parameter::matrices), and may have an adapter of their own: {".q",
// 0, 1}.
struct NamedParts {
  const char* name = "";
  int first = 0, count = 1;
};

// The last `count` parts of a fused layer, keys and values, are of so many heads each. Where there are more tensor-parallel
// ranks, a multiple of the heads, those of a head divide the other parts of it among each other, and each computes all of
// the head's last parts. These are held whole by every rank, and their gradients are summed over the ranks once a step.
struct CopiedParts {
  int count = 0;
  std::int64_t heads = 0;
  // Whether ranks of a tensor-parallel group of so many hold copies.
  bool by(int ranks) const { return count > 0 && (heads < ranks || heads % ranks != 0); }
};

// Rank r holds a share of the outputs. The output features may consist of several parts of equal length (q, k and v);
// each part is divided over the ranks. Global shapes: weight [parts, out / parts, in], bias [parts, out / parts]. If
// there is one part, the first dimension is left out.
class STRETTO_API ColumnParallelLinear {
 public:
  ColumnParallelLinear(Parameters& parameters, const std::string& name, std::int64_t in, std::int64_t out, int parts,
                       Initial weight, const TensorParallel& tensor_parallel, bool has_bias = true,
                       const AdapterSet& adapters = {}, const std::vector<NamedParts>& named = {},
                       const CopiedParts& copied = {});

  // x: own rows of so many tokens. Returns [tokens, this rank's share of out, or what CopiedParts leave it]. If given,
  // *for_backward becomes the x that backward takes: x, or the rows of all ranks with TensorParallel::keeps_gathered.
  Tensor forward(const Tensor& x, std::int64_t tokens, ParameterUse& use, Tensor* for_backward = nullptr,
                 const kernels::Epilogue& epilogue = {}, const Tensor& draws = {}) const;
  // Returns own rows of dx = dy W, summed over the group. The sum runs on the stream while the gradients of weight and bias
  // are computed. With `later`, nothing is left to compute meanwhile, and the sum is waited for at once.
  Tensor backward(const Tensor& x, const Tensor& dy, ParameterUse& use, WeightGradients* later = nullptr,
                  const Tensor& draws = {}) const;
  // Linear layers keep their input. activates: an activation adds the bias in the same pass.
  LayerCost cost(const CostedTokens& tokens, bool activates = false) const;

 private:
  Tensor forward_by_tiles(const Tensor& x, ParameterUse& use, const kernels::Epilogue& epilogue, const Tensor& draws) const;
  Tensor backward_by_tiles(const Tensor& x, const Tensor& dy, ParameterUse& use, WeightGradients* later,
                           const Tensor& draws) const;

  TensorParallel tensor_parallel_;
  std::shared_ptr<const WeightTiles> tiles_;  // null without
  std::shared_ptr<const OwnRows> weight_;
  std::shared_ptr<const OwnRows> bias_;  // may be none
  std::shared_ptr<const LinearAdapters> adapters_;
  const UsedParameters* used_;
};

// Rank r holds a share of the inputs. Global shapes: weight [out, in], bias [out]. The bias is added once, after the
// sum.
class STRETTO_API RowParallelLinear {
 public:
  RowParallelLinear(Parameters& parameters, const std::string& name, std::int64_t in, std::int64_t out, Initial weight,
                    const TensorParallel& tensor_parallel, bool has_bias = true, const AdapterSet& adapters = {});

  // x: [tokens, this rank's share of in]; residual: own rows of [tokens, out], added to the result. Returns own rows of the
  // sum. If it pays, some rows are summed on the stream while others are computed.
  Tensor forward(const Tensor& x, const Tensor& residual, ParameterUse& use, const Tensor& draws = {}) const;
  // dy: own rows; where these are all rows, the same on every rank. Returns this rank's share of dx; it needs no sum. With
  // an epilogue, x was the activation of epilogue.before, and the gradient with respect to that is returned.
  Tensor backward(const Tensor& x, const Tensor& dy, ParameterUse& use, WeightGradients* later = nullptr,
                  const kernels::BackwardEpilogue& epilogue = {}, const Tensor& draws = {}) const;
  LayerCost cost(const CostedTokens& tokens) const;

 private:
  Tensor forward_by_tiles(const Tensor& x, const Tensor& residual, ParameterUse& use, const Tensor& draws) const;
  Tensor backward_by_tiles(const Tensor& x, const Tensor& dy, ParameterUse& use, WeightGradients* later,
                           const kernels::BackwardEpilogue& epilogue, const Tensor& draws) const;
  // backward() where ranks have own rows of dy.
  Tensor backward_of_rows(const Tensor& x, const Tensor& dy, WeightGradients* later, const Tensor& draws) const;
  // The function adds the gradients of all parameters, from the rows of dy of all ranks and those that the bias sees.
  std::function<void(const Tensor& dy, const Tensor& of_bias)> add_gradients(const Tensor& x, const LowRank& low) const;

  TensorParallel tensor_parallel_;
  std::shared_ptr<const WeightTiles> tiles_;  // null without
  Parameter* weight_ = nullptr;               // null with tiles
  Parameter* bias_;                           // null if there is none
  std::shared_ptr<const LinearAdapters> adapters_;
  const UsedParameters* used_;
};

}  // namespace stretto
