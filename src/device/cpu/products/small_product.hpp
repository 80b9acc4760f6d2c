#pragma once
#include <cstdint>

// Products of f32 matrices that lie in the cache, in the calling thread: a library's call would take longer. An element of c
// is a sum over k in its order, so that it has the same bits whatever m and n are.
namespace stretto::kernels::cpu {

struct SmallProduct {
  std::int64_t m, n, k;
  const float* a;  // [m, k]: element (i, l) at i * a_row + l * a_column
  std::int64_t a_row, a_column;
  const float* b;  // [k, n]
  std::int64_t b_row;
  float* c;  // [m, n], which overlaps neither
  std::int64_t c_row;
};

enum class ProductUse : std::uint8_t {
  assign,    // c = a b
  subtract,  // c = c - a b
  sign       // c = -1, 0 or 1, as a b is below, at or above 0
};
void small_product(const SmallProduct& p, ProductUse use);

}  // namespace stretto::kernels::cpu
