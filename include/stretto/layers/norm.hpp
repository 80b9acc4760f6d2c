#pragma once
#include "stretto/layers/layer_cost.hpp"
#include "stretto/layers/parameter_use.hpp"
#include "stretto/layers/tensor_parallel.hpp"

namespace stretto {

// The norm of each row, before the layers of a block and behind the last block. The kind is data: a new one is an
// enumerator, its kernels, and their cases in norm.cpp.
class STRETTO_API Norm {
 public:
  enum class Kind : std::uint8_t {
    layer,  // layer norm (Ba et al. 2016), with a weight and a bias
    rms     // RMS norm (Zhang & Sennrich 2019), with a weight
  };
  struct Options {
    Kind kind = Kind::layer;
    double epsilon = 1e-5;
    bool operator==(const Options&) const = default;
  };
  Norm(Parameters& parameters, const std::string& name, std::int64_t hidden, const Options& options,
       const TensorParallel& tensor_parallel);
  // The tensors that backward needs; the caller keeps them.
  struct Saved {
    Tensor x, mean, rstd;  // mean: empty for an RMS norm
  };
  // x: own rows (linear.hpp) of [tokens, hidden].
  Tensor forward(const Tensor& x, Saved& saved, ParameterUse& use) const;
  // Adds the gradient with respect to x to dx. Ranks of a tensor-parallel group that have all rows compute the same. The
  // small gradients of the weights are computed by the same pass over x, and are therefore never left for later.
  void backward(const Tensor& dy, const Saved& saved, const Tensor& dx, ParameterUse& use) const;
  LayerCost cost(const CostedTokens& tokens) const;

 private:
  TensorParallel tensor_parallel_;
  Options options_;
  Parameter* gamma_;
  Parameter* beta_;  // null for an RMS norm
  const UsedParameters* used_;
};

}  // namespace stretto
