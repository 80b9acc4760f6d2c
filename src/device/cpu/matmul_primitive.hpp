#pragma once
#include <cstdint>

#include "stretto/dtype.hpp"

namespace stretto::kernels::cpu {

// c = op(a) op(b) + (accumulate ? c : 0) over row-major arrays without gaps; op(a): [m, k], op(b): [k, n], c: [m, n].
struct Product {
  bool transpose_a, transpose_b;
  std::int64_t m, n, k;
  bool accumulate;
  bool operator==(const Product&) const = default;
};

// Whether oneDNN has matrix products of f32 or bf16 on this processor, within STRETTO_CPU_LEVEL: of f32 always, of bf16 with
// AVX-512 only. Without bf16 instructions it emulates them, at a fifth of the speed of f32.
bool has_matmul_primitive(DType dtype);
bool processor_multiplies_bf16();
bool has_tile_instructions();  // AMX

// A oneDNN matrix product, built once for each shape and thread. a and b: f32 or bf16; c: the same or f32; sums are kept
// in f32 either way. Throws Error(internal) with oneDNN's reason where it has no such product.
void matmul_primitive(const Product& product, DType dtype, const void* a, const void* b, DType dtype_c, void* c);

}  // namespace stretto::kernels::cpu
