#include "device/cpu/attention/pair_products.hpp"

#include "core/fail.hpp"
#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace stretto::kernels::attention {
#ifdef __x86_64__
namespace {

#define WITH_BF16 __attribute__((target("avx512f,avx512bf16")))
constexpr Index lanes = 16;

template <int rows, int vectors>
WITH_BF16 void products_in_registers(Index pairs, PairOperand left, const std::int32_t* right, Index right_row, float* sums,
                                     Index sums_row, bool accumulate, float factor) {
  __m512 sum[rows][vectors];
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 8
    for (int n = 0; n < vectors; ++n) sum[r][n] = _mm512_setzero_ps();
  }
  for (Index i = 0; i < pairs; ++i) {
    __m512bh of_right[vectors];
#pragma GCC unroll 8
    for (int n = 0; n < vectors; ++n) of_right[n] = (__m512bh)_mm512_loadu_si512(right + i * right_row + n * lanes);
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
      const auto of_left = (__m512bh)_mm512_set1_epi32(left.data[r * left.row_step + i * left.pair_step]);
#pragma GCC unroll 8
      for (int n = 0; n < vectors; ++n) sum[r][n] = _mm512_dpbf16_ps(sum[r][n], of_left, of_right[n]);
    }
  }
  const __m512 factors = _mm512_set1_ps(factor);
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 8
    for (int n = 0; n < vectors; ++n) {
      float* const to = sums + r * sums_row + n * lanes;
      const __m512 before = accumulate ? _mm512_loadu_ps(to) : _mm512_setzero_ps();
      _mm512_storeu_ps(to, _mm512_fmadd_ps(sum[r][n], factors, before));
    }
  }
}

}  // namespace

void pair_products(Index columns, Index pairs, PairOperand left, const std::int32_t* right, Index right_row, float* sums,
                   Index sums_row, bool accumulate, float factor) {
  constexpr int tall = row_group / 2;
  Index column = 0;
  for (; column + 4 * lanes <= columns; column += 4 * lanes) {
    for (Index r = 0; r < row_group; r += tall) {
      products_in_registers<tall, 4>(pairs, {left.data + r * left.row_step, left.row_step, left.pair_step}, right + column,
                                     right_row, sums + r * sums_row + column, sums_row, accumulate, factor);
    }
  }
  for (; column + 2 * lanes <= columns; column += 2 * lanes) {
    products_in_registers<row_group, 2>(pairs, left, right + column, right_row, sums + column, sums_row, accumulate, factor);
  }
  for (; column < columns; column += lanes) {
    products_in_registers<row_group, 1>(pairs, left, right + column, right_row, sums + column, sums_row, accumulate, factor);
  }
}
#else
void pair_products(Index /*columns*/, Index /*pairs*/, PairOperand /*left*/, const std::int32_t* /*right*/,
                   Index /*right_row*/, float* /*sums*/, Index /*sums_row*/, bool /*accumulate*/, float /*factor*/) {
  fail(ErrorCode::internal, "This processor does not multiply bf16.");
}
#endif

}  // namespace stretto::kernels::attention
