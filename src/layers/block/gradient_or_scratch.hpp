#pragma once
#include "stretto/kernels.hpp"
#include "stretto/layers/parameter.hpp"

namespace stretto {

// The gradient that the kernel of a norm adds to; that of a frozen parameter is thrown away. other: a parameter whose
// gradient the same kernel adds to, and which must have the same type.
inline Tensor gradient_or_scratch(const Parameter& parameter, const Parameter* other = nullptr) {
  if (parameter.trainable) return parameter.gradient;
  const bool like_other = other != nullptr && other->trainable;
  return Tensor::zeros(parameter.extents,
                       like_other ? other->gradient.dtype() : kernels::accumulator(parameter.value.dtype()));
}

}  // namespace stretto
