#pragma once
#include "device/cpu/attention/tile_mask.hpp"

// Products of bf16 matrices by the instruction that multiplies two pairs of bf16 and adds both products to a sum in f32
// (AVX512_BF16): twice the rate of f32. The products are exact, but subnormal elements count as zero. A pair lies in 32
// bits.
namespace stretto::kernels::attention {

// A matrix of pairs; the steps are in pairs.
struct PairOperand {
  const std::int32_t* data;
  Index row_step, pair_step;
};

// sums[row][column] = factor * the sum over i of left[row][i] right[i][column], for row_group rows and whole vectors of 16
// columns; if accumulate, plus sums[row][column]. Steps from row to row are in elements. Call it only where
// processor_multiplies_bf16().
void pair_products(Index columns, Index pairs, PairOperand left, const std::int32_t* right, Index right_row, float* sums,
                   Index sums_row, bool accumulate, float factor = 1);

}  // namespace stretto::kernels::attention
