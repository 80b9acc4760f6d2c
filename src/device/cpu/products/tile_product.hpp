#pragma once
#include "device/cpu/matmul_primitive.hpp"

// Products of bf16 matrices in the tile registers of AMX. Rows and columns of c are sums over k in an order that depends on
// k alone, so that they have the same bits whatever m and n are.
namespace stretto::kernels::cpu {

// Whether the processor has AMX with bf16 within STRETTO_CPU_LEVEL, and the system lets this process use it.
bool processor_has_tiles();

// a and b: bf16; c: bf16 or f32. Sums are kept in f32, and rounded once; subnormal elements count as zero. Call it only
// where processor_has_tiles().
void tile_product(const Product& product, const void* a, const void* b, DType dtype_c, void* c, int threads);

}  // namespace stretto::kernels::cpu
