#pragma once
#include <string>

#include "stretto/layers/optimizer.hpp"

// The tensors of a range's state as checkpoints number them: 0 is the master weights, and the slots of the optimizer follow.
namespace stretto {

inline std::size_t count_of_tensors(const Optimizer::State& state) { return 1 + state.slots.size(); }
inline const Tensor& tensor_of(const Optimizer::State& state, std::size_t number) {
  return number == 0 ? state.master : state.slots[number - 1];
}
inline std::string tensor_name(const OptimizerKind& kind, std::size_t number, const std::string& parameter) {
  return number == 0 ? parameter : kind.slots[number - 1].name + "." + parameter;
}

}  // namespace stretto
