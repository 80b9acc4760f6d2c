#pragma once
#include <cstddef>
#include <vector>

#include "stretto/dtype.hpp"

namespace stretto {

struct GradientSize {
  std::size_t bytes = 0;
  DType dtype = DType::f32;
  bool ends_bucket = false;  // no bucket holds this gradient and the next
};

// Cuts gradients, in the order in which they become ready, into runs; the result is where each ends. A run has one type and
// at least so many bytes, unless something ends it earlier. The first needs only first_bytes, so that the link begins early.
// Towards the end they become smaller, as there is less and less computation left to hide their sums: none needs more than
// half of what is left, and the last has the gradients at the end that fit into first_bytes, but at least one.
std::vector<std::size_t> cut_into_buckets(const std::vector<GradientSize>& gradients, std::size_t bytes,
                                          std::size_t first_bytes);

}  // namespace stretto
