#pragma once
#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "stretto/layers/optimizer.hpp"

// The tensors of a range's state as checkpoints number them: 0 is the master weights, and the slots of the optimizer follow;
// behind them is, with a delay, the gradient that no update has taken yet, and then the older versions of the weights that
// are saved, from the newest to the oldest. Without a flush a checkpoint finds no such gradient.
namespace stretto {

inline constexpr const char* late_prefix = "late";  // of a gradient's name

inline bool has_late(const ShardedParameters::Options& options) { return options.delay > 0 && options.versions == 0; }
inline int saved_older_versions(const ShardedParameters& parameters) {
  return parameters.options().saves_versions ? std::max(parameters.options().versions - 1, 0) : 0;
}
inline std::size_t most_tensors(const ShardedParameters& parameters, const OptimizerKind& kind) {
  return 2 + kind.slots.size() + static_cast<std::size_t>(saved_older_versions(parameters));
}
inline bool is_late(const Optimizer& optimizer, std::size_t number) { return number == 1 + optimizer.kind().slots.size(); }
// How many updates before the latest version; 0: no version.
inline int age_of(const OptimizerKind& kind, std::size_t number) {
  return number < 2 + kind.slots.size() ? 0 : static_cast<int>(number - 1 - kind.slots.size());
}
// Empty where there is none: of values that are stored in fewer bits (ShardedParameters::store), of frozen parameters, and
// where a slot is not of the parameter.
inline Tensor tensor_of(const ShardedParameters& parameters, const Optimizer& optimizer, std::size_t range,
                        std::size_t number) {
  if (!optimizer.weights(range)) return {};
  if (is_late(optimizer, number)) return has_late(parameters.options()) ? parameters.ranges()[range].late : Tensor();
  if (const int age = age_of(optimizer.kind(), number); age > 0) {
    const ShardedParameters::Range& its = parameters.ranges()[range];
    return its.gradient ? parameters.older_value(its, age) : Tensor();
  }
  if (number == 0) return optimizer.weights(range);
  const std::vector<Tensor>& slots = optimizer.states()[range].slots;
  return slots.empty() ? Tensor() : slots[number - 1];
}
inline std::string tensor_name(const OptimizerKind& kind, std::size_t number, const std::string& parameter) {
  if (number == 0) return parameter;
  if (const int age = age_of(kind, number); age > 0) return fmt::format("before{}.{}", age, parameter);
  return (number <= kind.slots.size() ? kind.slots[number - 1].name : late_prefix) + ("." + parameter);
}

}  // namespace stretto
