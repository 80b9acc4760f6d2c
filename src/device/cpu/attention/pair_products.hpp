#pragma once
#include "device/cpu/attention/tile_mask.hpp"

// Products of bf16 matrices by the instruction that multiplies two pairs of bf16 and adds both products to a sum in f32
// (AVX512_BF16): twice the rate of f32. The products are exact. A pair lies in 32 bits.
namespace stretto::kernels::attention {

// sums[row][column] = factor * the sum over i of left[row][i] right[i][column], for row_group rows and whole vectors of 16
// columns. Rows of right and of sums are `tile` columns apart. Call it only where processor_multiplies_bf16().
void pair_products(Index columns, Index pairs, const std::int32_t* left, Index left_row, const std::int32_t* right,
                   float* sums, float factor);

}  // namespace stretto::kernels::attention
