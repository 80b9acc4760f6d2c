#pragma once
#include <memory>

#include "stretto/layers/decoder_shape.hpp"
#include "stretto/layers/layer_cost.hpp"
#include "stretto/layers/parameter_use.hpp"
#include "stretto/layers/tensor_parallel.hpp"
#include "stretto/layers/weight_gradients.hpp"

namespace stretto {

// A vector for each position, which is added to those of the tokens there (GPT-2; Radford et al. 2019). All tensor-parallel
// ranks hold all of them.
class STRETTO_API LearnedPositions {
 public:
  LearnedPositions(Parameters& parameters, const std::string& name, std::int64_t count, std::int64_t hidden, Initial initial,
                   const TensorParallel& tensor_parallel);
  // positions: i32, of all rows; x: own rows (layers/linear.hpp) of [tokens, hidden], which are changed.
  void add(const Tensor& positions, const Tensor& x, ParameterUse& use) const;
  // dx: the gradient with respect to the sum, which is that with respect to x as well.
  void backward(const Tensor& positions, const Tensor& dx, ParameterUse& use, WeightGradients* later = nullptr) const;
  LayerCost cost(const CostedTokens& tokens) const;

 private:
  TensorParallel tensor_parallel_;
  Parameter* vectors_;
  const UsedParameters* used_;
};

// The queries and keys of a token are turned by angles that grow with its position (rotary.hpp).
class STRETTO_API RotaryPositions {
 public:
  explicit RotaryPositions(const DecoderShape& shape);
  // Null for a shape without rotary positions.
  static std::shared_ptr<const RotaryPositions> of(const DecoderShape& shape);
  // Turns heads in place; by minus the angles, if `back`. positions: i32, of each token in its whole sequence. The first
  // call makes the table, on the device of the calling thread, which all calls must come from.
  void turn(const kernels::TokenHeads& of, std::int64_t heads, const Tensor& positions, bool back) const;

 private:
  RotaryFrequencies frequencies_;
  std::int64_t sequence_;
  mutable Tensor table_;
};

}  // namespace stretto
