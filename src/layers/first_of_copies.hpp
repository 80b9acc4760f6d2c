#pragma once
#include <algorithm>

#include "stretto/layers/parameter.hpp"

namespace stretto {

// The axes along which ranks hold the complete gradient of a parameter, each for its own copy of it.
inline Axes copied_over(const Parameter& parameter, const MeshShape& mesh) {
  return mesh.divided(parameter.replicated_over - parameter.sum_gradient_over);
}

// Where several ranks hold a parameter's complete gradient, the first of them owns it.
inline bool first_of_copies(const Parameter& parameter, const Mesh& mesh) {
  const Axes copied = parameter.replicated_over - parameter.sum_gradient_over;
  return std::all_of(all_axes.begin(), all_axes.end(),
                     [&](Axis axis) { return !copied.contains(axis) || mesh.rank(axis) == 0; });
}

}  // namespace stretto
