#pragma once
#include <cstdint>

#include "stretto/dtype.hpp"

namespace stretto::kernels {

// c = op(a) op(b) + (accumulate ? c : 0) over row-major arrays without gaps; op(a): [m, k], op(b): [k, n], c: [m, n].
struct Product {
  bool transpose_a, transpose_b;
  std::int64_t m, n, k;
  bool accumulate;
  bool operator==(const Product&) const = default;
};

// A oneDNN matrix product, built once for each shape and thread. a and b: f32 or bf16; c: the same or f32; sums are kept
// in f32 either way. Processors without bf16 instructions emulate them at a fifth of the speed of f32.
void matmul_primitive(const Product& product, DType dtype, const void* a, const void* b, DType dtype_c, void* c);

}  // namespace stretto::kernels
