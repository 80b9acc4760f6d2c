#pragma once
#include "stretto/kernels.hpp"
#include "stretto/layers/parameter.hpp"

// Memory of one rank's parameters, without units or a mesh: tests of single layers read values and gradients directly.
namespace stretto {

inline void allocate(const Parameters& parameters, DType dtype) {
  for (const auto& each : parameters.all()) {
    each->value = Tensor(each->extents, dtype);
    each->gradient = Tensor::zeros(each->extents, kernels::accumulator(dtype));
  }
}

inline void initialise(const Parameters& parameters, std::uint64_t seed) {
  for (const auto& each : parameters.all()) set_initial_values(*each, seed, 0, each->value);
}

inline void zero_gradients(const Parameters& parameters) {
  for (const auto& each : parameters.all()) {
    each->gradient.zero();
    each->unset = nullptr;
  }
}

}  // namespace stretto
