#pragma once
#include "device/cpu/attention/tile_mask.hpp"

// Products of bf16 matrices by the instructions that multiply pairs of bf16 and add the products to a sum in f32: of AMX, 16
// rows by 16 columns by 16 pairs at once, and of AVX512_BF16, 16 pairs. The products are exact, but subnormal elements count
// as zero. A pair lies in 32 bits.
namespace stretto::kernels::attention {

// Rows of pairs that lie next to each other; the step is in pairs.
struct PairRows {
  const std::int32_t* data;
  Index row_step;
};

// While it lives, this thread may call pair_products; it does nothing unless used.
class PairProducts {
 public:
  explicit PairProducts(bool used);
  ~PairProducts();
  PairProducts(const PairProducts&) = delete;
  PairProducts& operator=(const PairProducts&) = delete;

 private:
  bool tiles_;
};

// sums[row][column] = the sum over i of left[row][i] right[i][column], for whole row groups and whole vectors of 16 columns;
// if accumulate, plus sums[row][column]. Steps from row to row are in elements. Call it only where
// processor_multiplies_bf16().
void pair_products(Index rows, Index columns, Index pairs, PairRows left, const std::int32_t* right, Index right_row,
                   float* sums, Index sums_row, bool accumulate);

}  // namespace stretto::kernels::attention
