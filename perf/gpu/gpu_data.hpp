#pragma once
#include <algorithm>
#include <random>
#include <vector>

#include "stretto/kernels.hpp"

namespace perf {

using stretto::DType;
using stretto::Shape;
using stretto::Tensor;
namespace kernels = stretto::kernels;

// Normally distributed numbers in the memory of this thread's device. Zeros and repeated values would be multiplied faster
// than the numbers of real training.
inline Tensor random(Shape shape, DType dtype, double deviation = 1) {
  constexpr std::int64_t period = 1 << 20;
  static const std::vector<float> numbers = [] {
    std::mt19937 generator(1);
    std::normal_distribution<float> normal;
    std::vector<float> result(period);
    for (float& number : result) number = normal(generator);
    return result;
  }();
  Tensor wide = Tensor::of(numbers);
  kernels::scale(wide, deviation);
  Tensor piece({period}, dtype);
  kernels::convert(wide, piece);
  Tensor result(std::move(shape), dtype);
  for (std::int64_t at = 0; at < result.size(); at += period) {
    const std::int64_t count = std::min(period, result.size() - at);
    result.view(at, {count}).copy_from(piece.view(0, {count}));
  }
  return result;
}

}  // namespace perf
