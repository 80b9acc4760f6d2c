#include "perf/overlap/dense_layers.hpp"

namespace perf {

using stretto::DType;
using stretto::Tensor;

void fill_patterned(const Tensor& tensor, int seed, double scale) {
  for (std::int64_t i = 0; i < tensor.size(); ++i) {
    tensor.set(i, static_cast<double>((i * 31 + i / 7 + seed * 17) % 13 - 6) * scale);
  }
}

Tensor patterned(stretto::Shape shape, DType dtype, int seed, double scale) {
  Tensor tensor(std::move(shape), dtype);
  fill_patterned(tensor, seed, scale);
  return tensor;
}

}  // namespace perf
