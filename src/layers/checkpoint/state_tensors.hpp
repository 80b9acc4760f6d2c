#pragma once
#include <string>

#include "stretto/layers/optimizer.hpp"

// The tensors of a range's state as checkpoints number them: 0 is the master weights, and the slots of the optimizer follow.
namespace stretto {

// None of values that are stored in fewer bits (ShardedParameters::store).
inline std::size_t count_of_tensors(const Optimizer& optimizer, std::size_t range) {
  return optimizer.weights(range) ? 1 + optimizer.states()[range].slots.size() : 0;
}
inline const Tensor& tensor_of(const Optimizer& optimizer, std::size_t range, std::size_t number) {
  return number == 0 ? optimizer.weights(range) : optimizer.states()[range].slots[number - 1];
}
inline std::string tensor_name(const OptimizerKind& kind, std::size_t number, const std::string& parameter) {
  return number == 0 ? parameter : kind.slots[number - 1].name + "." + parameter;
}

}  // namespace stretto
