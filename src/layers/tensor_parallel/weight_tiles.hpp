#pragma once
#include <functional>
#include <vector>

#include "stretto/layers/layer_cost.hpp"
#include "stretto/layers/parameter_use.hpp"
#include "stretto/layers/tensor_parallel.hpp"
#include "stretto/layers/weight_gradients.hpp"

namespace stretto {

// The weight of a linear layer as T records, each of a part of its outputs (TensorParallel::tiles). A tile is used while it
// is multiplied, and no longer. Of a weight whose outputs consist of several parts, a tile has rows of each.
class WeightTiles {
 public:
  // Adds the records that take the place of `weight`, which is not added itself. `outputs`: the dimension that is cut.
  // Throws Error(invalid_argument) if this rank's outputs do not divide.
  WeightTiles(Parameters& parameters, const Parameter& weight, std::size_t outputs, int tiles);

  const std::vector<Parameter*>& records() const { return records_; }
  // y = x W^T; x: [tokens, in], y: [tokens, out].
  void multiply(const Tensor& x, const Tensor& y, ParameterUse& use) const;
  // The same summed over the group: the sum of a tile's product travels while the next tile is multiplied.
  void multiply_and_sum(const Tensor& x, const Tensor& y, ParameterUse& use, const TensorParallel& parallel,
                        const char* tag) const;
  // dx = dy W, the tiles' products added up in the accumulator type; and adds dy^T x to the gradients, or leaves that for
  // later. Calls `behind` when dx is complete, in front of the last tile's gradient.
  void multiply_back(const Tensor& x, const Tensor& dy, const Tensor& dx, ParameterUse& use, WeightGradients* later,
                     const std::function<void()>& behind = {}) const;
  // Adds what tiles cost beside the products. hides: whether exchanges hide; in backward, behind the gradient of one tile.
  void add_cost(const CostedTokens& tokens, LayerCost& cost, bool hides) const;

 private:
  std::int64_t rows() const { return parts_ * width_; }  // of a tile
  std::int64_t tiles() const { return static_cast<std::int64_t>(records_.size()); }
  std::int64_t column(std::size_t tile, std::int64_t part) const;  // of y, of the tile's first row of a part
  void put(const Tensor& product, std::size_t tile, const Tensor& y) const;

  std::vector<Parameter*> records_;
  std::vector<const UsedParameters*> used_;
  std::int64_t parts_, width_;
};

}  // namespace stretto
