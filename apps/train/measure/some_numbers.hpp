#pragma once
#include "stretto/device.hpp"
#include "stretto/layers/parameter.hpp"
#include "stretto/tensor.hpp"

namespace apps {

// A matrix of small random numbers on the current device.
inline stretto::Tensor some_numbers(std::int64_t rows, std::int64_t columns, stretto::DType dtype) {
  const stretto::Tensor host({rows, columns}, dtype, stretto::Device::cpu);
  for (std::int64_t i = 0; i < host.size(); ++i) {
    host.set(i, 0.1 * stretto::random_normal(1, "calibration", static_cast<std::uint64_t>(i % 4099)));
  }
  return host.on(stretto::current_device());
}

}  // namespace apps
