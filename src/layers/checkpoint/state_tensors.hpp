#pragma once
#include <string>

#include "stretto/layers/optimizer.hpp"

// The tensors of a range's state as checkpoints number them: 0 is the master weights, and the slots of the optimizer follow;
// with a delay, the last one is the gradient that no update has taken yet.
namespace stretto {

inline constexpr const char* late_prefix = "late";  // of a gradient's name

inline std::size_t most_tensors(const OptimizerKind& kind) { return 2 + kind.slots.size(); }
// None of values that are stored in fewer bits (ShardedParameters::store).
inline std::size_t count_of_tensors(const ShardedParameters& parameters, const Optimizer& optimizer, std::size_t range) {
  if (!optimizer.weights(range)) return 0;
  return 1 + optimizer.states()[range].slots.size() + (parameters.ranges()[range].late ? 1 : 0);
}
inline bool is_late(const Optimizer& optimizer, std::size_t number) { return number > optimizer.kind().slots.size(); }
inline const Tensor& tensor_of(const ShardedParameters& parameters, const Optimizer& optimizer, std::size_t range,
                               std::size_t number) {
  if (is_late(optimizer, number)) return parameters.ranges()[range].late;
  return number == 0 ? optimizer.weights(range) : optimizer.states()[range].slots[number - 1];
}
inline std::string tensor_name(const OptimizerKind& kind, std::size_t number, const std::string& parameter) {
  if (number == 0) return parameter;
  return (number <= kind.slots.size() ? kind.slots[number - 1].name : late_prefix) + ("." + parameter);
}

}  // namespace stretto
