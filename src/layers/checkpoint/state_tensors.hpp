#pragma once
#include <string>

#include "stretto/layers/optimizer.hpp"

// The tensors of a range's state as checkpoints number them: 0 is the master weights, and the slots of the optimizer follow;
// with a delay, the last one is the gradient that no update has taken yet.
namespace stretto {

inline constexpr const char* late_prefix = "late";  // of a gradient's name

inline std::size_t most_tensors(const OptimizerKind& kind) { return 2 + kind.slots.size(); }
inline bool is_late(const Optimizer& optimizer, std::size_t number) { return number > optimizer.kind().slots.size(); }
// Empty where there is none: of values that are stored in fewer bits (ShardedParameters::store), of frozen parameters, and
// where a slot is not of the parameter.
inline Tensor tensor_of(const ShardedParameters& parameters, const Optimizer& optimizer, std::size_t range,
                        std::size_t number) {
  if (!optimizer.weights(range)) return {};
  if (is_late(optimizer, number)) return parameters.ranges()[range].late;
  if (number == 0) return optimizer.weights(range);
  const std::vector<Tensor>& slots = optimizer.states()[range].slots;
  return slots.empty() ? Tensor() : slots[number - 1];
}
inline std::string tensor_name(const OptimizerKind& kind, std::size_t number, const std::string& parameter) {
  if (number == 0) return parameter;
  return (number <= kind.slots.size() ? kind.slots[number - 1].name : late_prefix) + ("." + parameter);
}

}  // namespace stretto
