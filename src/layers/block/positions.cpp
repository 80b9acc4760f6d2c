#include "stretto/layers/positions.hpp"

#include "core/fail.hpp"
#include "stretto/kernels.hpp"

namespace stretto {

LearnedPositions::LearnedPositions(Parameters& parameters, const std::string& name, std::int64_t count, std::int64_t hidden,
                                   Initial initial, const TensorParallel& tensor_parallel)
    : tensor_parallel_(tensor_parallel),
      vectors_(&parameters.add(
          Parameter::whole(name + ".weight", {count, hidden}, tensor_parallel.row_axes(), {.initial = initial}))),
      used_(&parameters.used_together({vectors_})) {}

void LearnedPositions::add(const Tensor& positions, const Tensor& x, ParameterUse& use) const {
  const InUse in_use(use, *used_, Pass::forward);
  const Tensor places(x.shape(), x.dtype());
  kernels::embedding_forward(tensor_parallel_.own_rows(positions), 0, vectors_->value, places);
  kernels::add(x, places, x);
}

void LearnedPositions::backward(const Tensor& positions, const Tensor& dx, ParameterUse& use, WeightGradients* later) const {
  if (!vectors_->trainable) return;
  const auto compute = [vectors = vectors_, places = tensor_parallel_.own_rows(positions), dx] {
    kernels::embedding_backward(places, 0, dx, vectors->gradient);
  };
  if (later != nullptr) return later->add(*used_, compute);
  const InUse in_use(use, *used_, Pass::backward);
  compute();
}

// The vectors are read, written and added.
LayerCost LearnedPositions::cost(const CostedTokens& tokens) const {
  const std::int64_t own = tokens.bytes(tensor_parallel_.own_rows(tokens.count).count * vectors_->extents.back());
  LayerCost cost;
  cost.forward = {.bytes = 5.0 * static_cast<double>(own), .kernels = 2};
  if (vectors_->trainable) cost.input = {.bytes = 2.0 * static_cast<double>(own), .kernels = 1};
  cost.parameters = vectors_->elements();
  return cost;
}

RotaryPositions::RotaryPositions(const DecoderShape& shape)
    : frequencies_(rotary_frequencies(shape.rope_theta, shape.head_size, shape.rope_scaling, shape.sequence)),
      sequence_(shape.sequence) {}

std::shared_ptr<const RotaryPositions> RotaryPositions::of(const DecoderShape& shape) {
  if (shape.positions != DecoderShape::Positions::rotary) return nullptr;
  return std::make_shared<RotaryPositions>(shape);
}

void RotaryPositions::turn(const kernels::TokenHeads& of, std::int64_t heads, const Tensor& positions, bool back) const {
  require(positions.size() == of.tensor.rows(),
          "Rotary positions got {} positions for {} tokens; give the block the position of each (Tokens).", positions.size(),
          of.tensor.rows());
  if (!table_) {
    const MemoryScope values(MemoryKind::values);
    table_ = rotary_table(frequencies_, sequence_, of.tensor.dtype());
  }
  kernels::rotary(of, heads, positions, table_, of, back);
}

}  // namespace stretto
