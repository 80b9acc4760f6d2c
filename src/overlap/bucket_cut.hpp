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

// Cuts gradients, given in the order in which they become ready, into buckets; returns the end index of each bucket. A
// bucket has one type and at least `bytes` bytes, unless ends_bucket or the next gradient's type ends it earlier. The first
// bucket needs only first_bytes, so that the link starts early. Later buckets become smaller, because less computation is
// left to hide their sums: no bucket needs more than half of the bytes that are left, and the last one holds the gradients
// at the end that fit into first_bytes, but at least one.
std::vector<std::size_t> cut_into_buckets(const std::vector<GradientSize>& gradients, std::size_t bytes,
                                          std::size_t first_bytes);

}  // namespace stretto
